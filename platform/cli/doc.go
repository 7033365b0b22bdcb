// Package cli implements the command line of thaw: its verbs and their settings; most verbs call a
// server's control API, and what serve, agent and a few others run is passed in by package main.
// Settings come from flags, environment and config file.
//
// Main runs a verb: it takes arguments and streams and returns the exit code, so
// that a test calls what main calls. Programs has the functions of the verbs that
// run the platform (serve, agent, keep, engines, bench), which package main wires;
// the other verbs call a server through api.Client. Package kit has what is shared
// with thaw-knative.
//
// Output: results go to stdout, everything else to stderr. Colours and bars are for
// terminals only; otherwise progress is plain lines, one per change of state or 5 s.
// JSON and YAML are an interface, tables are not. Text of servers and files is
// printed with its control characters spelled out.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 not allowed or
// over quota, 5 took too long, 6 unavailable (try again), 130 interrupted.
// An error has the failure, its cause and a hint.
//
// Settings of serve and agent come from a flag, else the environment (THAW_…),
// else the file of --config, else the default; thaw config view --show-origin
// shows which. All four use the same name of a setting.
//
// It is one idea: the verbs of one program, which share the server client, its keys and
// errors, the tables of the same records and the forms of output.
package cli

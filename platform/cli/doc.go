// Package cli is the verbs of thaw: what a person types, and what comes back.
//
// Main is the whole program but for the programs behind it: it takes arguments
// and streams, and returns the exit code, so that a test calls what main calls.
// What runs the platform (serve, agent, keep, engines, bench) is handed in as
// Programs, because those rooms are wired elsewhere; the other verbs speak to a
// server through api.Client.
//
// The rules of output: what was asked for goes to stdout, everything else to
// stderr. Colours and bars are for terminals only; otherwise progress is plain
// lines, one per change of state or 5 s. JSON and YAML are an interface, tables
// are not. Whatever a server or file said is printed with its control
// characters spelled out, so that no name can command a terminal.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 not allowed or
// over quota, 5 took too long, 6 unavailable (try again), 130 interrupted.
// An error says what, why, and a hint what to do.
//
// Settings of serve and agent come from a flag, else the environment (THAW_…),
// else the file of --config, else the default; thaw config view --show-origin
// tells which. All four spell a setting the same way.
package cli

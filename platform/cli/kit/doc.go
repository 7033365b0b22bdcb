// Package kit is the toolkit of the command lines of thaw and thaw-knative: settings (flag before
// environment before file), arguments and help on cobra, logs, output, and exit codes.
//
// A setting is a struct field. Its tags name the flag, the THAW_ variable, the key
// of the configuration file, the default and the help; RegisterFlags and LoadSettings
// read them.
//
// Results go to Terminal.Out, everything else to Terminal.Err. Text of servers and
// files passes through Plain, which spells out control characters.
//
// It imports no Kubernetes library: thaw starts without them.
package kit

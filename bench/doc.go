// Package bench measures thaw from outside, beside its peers, and writes down
// what it found: `thaw bench coldstart`, `thaw bench gateway`, `thaw bench
// loader` and `thaw bench schedule`.
//
// A number is worth something beside another from the same run, so everything
// is a ratio to a peer or a comparison with a baseline; rounds are interleaved
// and medians count. The rooms: fake is the engine that generates nothing, load
// asks and checks every answer, process starts programs and ends them, served is
// the platform as seen from outside, report writes tables and pictures, and
// coldstart, gateway, loader and schedule are the benches.
package bench

//go:build ignore

// Tally reads the output of `go test -json`, prints what a person wants to see
// of it (the line of each package, the whole output of what failed) and adds
// the counts to a file, and what failed tests said, cut short, to FILE.why:
//
//	go test -json ./... | go run .ci/tally.go -counts FILE [-whole] [-left FILE]
//	go run .ci/tally.go -counts FILE -sum      # N passed, N failed
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

func main() {
	counts := flag.String("counts", "", "file of counts")
	sum := flag.Bool("sum", false, "print the sum of the counts")
	whole := flag.Bool("whole", false, "a test that is skipped has failed")
	left := flag.String("left", "", "file for `package test` of every test that, or of which a part, was skipped")
	flag.Parse()
	if err := run(*counts, *sum, *whole, *left); err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(1)
	}
}

func run(counts string, sum, whole bool, left string) error {
	if sum {
		return total(counts)
	}
	var passed, failed, skipped int
	var names []string              // of what failed
	output := map[string][]string{} // of tests that still run
	var skips, why strings.Builder
	var packages []event // at their ends
	began, built := time.Now(), time.Duration(0)
	s := bufio.NewScanner(os.Stdin)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var e event
		if !bytes.HasPrefix(s.Bytes(), []byte("{")) || json.Unmarshal(s.Bytes(), &e) != nil {
			fmt.Println(s.Text()) // make's own lines, a compiler's
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "start":
			if built == 0 {
				built = time.Since(began)
			}
		case "build-output":
			fmt.Print(e.Output)
		case "build-fail":
			failed++
			names = append(names, e.ImportPath+" does not build")
		case "output":
			switch {
			case e.Test != "":
				output[key] = append(output[key], e.Output)
			case strings.HasPrefix(e.Output, "ok "), strings.HasPrefix(e.Output, "FAIL"), strings.HasPrefix(e.Output, "panic"),
				strings.HasPrefix(e.Output, "---"), strings.Contains(e.Output, "DATA RACE"):
				fmt.Print(e.Output)
			default:
				output[key] = append(output[key], e.Output)
			}
		case "pass", "skip", "fail":
			switch {
			case e.Action == "fail":
				said := strings.Join(output[key], "")
				fmt.Print(clip(said, 4<<10, 8<<10))
				if e.Test != "" {
					fmt.Fprintf(&why, "-- %s\n%s", key, clip(said, 1<<10, 3<<10))
					failed++
					names = append(names, key)
				}
			case e.Test == "":
			case e.Action == "skip":
				skipped++
				top, _, _ := strings.Cut(e.Test, "/")
				fmt.Fprintln(&skips, e.Package, top)
				fmt.Print(strings.Join(output[key], ""))
				if whole {
					failed++
					names = append(names, key+" (skipped)")
				}
			default:
				passed++
			}
			if e.Test == "" {
				packages = append(packages, e)
			}
			delete(output, key)
		}
	}
	if err := s.Err(); err != nil {
		return err
	}
	fmt.Printf("%d passed, %d failed, %d skipped; the first began after %.0f s", passed, failed, skipped, built.Seconds())
	slices.SortFunc(packages, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	before := "; longest: "
	for _, p := range packages[:min(5, len(packages))] {
		fmt.Printf("%s%s %.0f s", before, strings.TrimPrefix(p.Package, "github.com/thaw-dev/thaw/"), p.Elapsed)
		before = ", "
	}
	fmt.Println()
	if left != "" {
		if err := os.WriteFile(left, []byte(skips.String()), 0o644); err != nil {
			return err
		}
	}
	if err := add(counts, fmt.Sprintln(passed, failed, strings.Join(names, "; "))); err != nil {
		return err
	}
	if err := add(counts+".why", why.String()); err != nil {
		return err
	}
	if whole && skipped > 0 {
		return fmt.Errorf("%d tests were skipped where none may be", skipped)
	}
	return nil
}

// add appends to a file.
func add(name, text string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// clip keeps the beginning and the end of a long output.
func clip(s string, head, tail int) string {
	if len(s) <= head+tail {
		return s
	}
	return s[:head] + "\n… " + fmt.Sprint(len(s)-head-tail) + " bytes left out …\n" + s[len(s)-tail:]
}

func total(counts string) error {
	b, err := os.ReadFile(counts)
	if err != nil {
		return err
	}
	var passed, failed int
	for line := range strings.Lines(string(b)) {
		var p, f int
		if _, err := fmt.Sscan(line, &p, &f); err != nil {
			return err
		}
		if fields := strings.SplitN(strings.TrimSpace(line), " ", 3); len(fields) == 3 {
			fmt.Println("failed:", strings.ReplaceAll(fields[2], "; ", "\nfailed: "))
		}
		passed, failed = passed+p, failed+f
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	return nil
}

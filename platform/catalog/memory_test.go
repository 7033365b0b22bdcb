package catalog

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// memoryBound is what decoding any input may allocate in all: the controller decodes
// definitions of tenants within a limit of 512 MiB for the whole cluster.
const memoryBound = 10 << 20

// checkMemory fails if f allocates more than memoryBound.
func checkMemory(t *testing.T, name string, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > memoryBound+raceOverhead {
		t.Errorf("%s: %d KiB allocated, at most %d are allowed", name, n>>10, (memoryBound+raceOverhead)>>10)
	}
}

// decodeAll decodes a text in every way the program does.
func decodeAll(t *testing.T, name string, text []byte) {
	t.Helper()
	checkMemory(t, name, func() { Decode("f.yaml", text) })
	checkMemory(t, name+", of a tenant", func() { DecodeTenant("f.yaml", text) })
	checkMemory(t, name+", as settings", func() {
		var pod functions.Pod
		DecodePlaced("f.yaml", text, &pod)
	})
	checkMemory(t, name+", its keys", func() { Keys("f.yaml", text) })
}

// nestedTabs is JSON with a tab and n lists of the given depth. json.Indent makes text of it
// that grows with the square of the depth.
func nestedTabs(n, depth int) string {
	var b strings.Builder
	b.WriteString("{\t")
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"x%d":%s%s`, i, strings.Repeat("[", depth), strings.Repeat("]", depth))
	}
	return b.String() + "}"
}

// TestMemory: no input makes the decoder allocate more than memoryBound. The first rows
// once took 606 MB, 1.9 GB and more than 6.6 GB.
func TestMemory(t *testing.T) {
	fill := func(unit string, size int) string { return strings.Repeat(unit, size/len(unit)) }
	model := tiny + "---\n"
	router := "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: auto}\nspec:\n"
	rows := map[string]string{
		"11 KB of nested lists":  nestedTabs(1, 5500),
		"20 KB of nested lists":  nestedTabs(1, 9990),
		"260 KB of nested lists": nestedTabs(13, 9990),
		"128 KB of nested lists": nestedTabs(6, 9990),
		"nested maps":            "{\t" + strings.Repeat(`"a":{`, 9000) + strings.Repeat("}", 9001),
		"models":                 fill(model, MaxFile),
		"models within bounds":   fill(model, 300*len(model)),
		"unknown keys":           tiny + "  " + strings.Repeat("enginee: 1\n  ", 2500),
		"long unknown keys":      tiny + "  " + strings.Repeat(strings.Repeat("e", 60)+": 1\n  ", 1900),
		"adapters":               tiny + "  adapters:\n" + strings.Repeat("  - {name: a, source: b}\n", 1900),
		"adapters by alias":      tiny + "  adapters:\n  - &a {name: a, source: b, rank: 8, x: 1, y: 2}\n" + strings.Repeat("  - *a\n", 9000),
		"lists by alias":         tiny + "  files: [&a [x,x,x,x,x,x,x,x,x,x]" + strings.Repeat(",*a", 3900) + "]\n",
		"maps by alias":          tiny + "  env: &a {A: b, B: c}\n  adapters: [" + strings.Repeat("*a,", 3900) + "]\n",
		"rules":                  router + "  rules:\n" + strings.Repeat("  - {name: a, when: {code: true, tokensAbove: 1}, to: [a, b]}\n", 240),
		"rules by alias":         router + "  rules:\n  - &a {name: a, when: {code: true, complexityAbove: 0.5}, to: [a, b]}\n" + strings.Repeat("  - *a\n", 3900),
		"examples":               router + "  intents:\n    list:\n    - name: a\n      examples:\n" + strings.Repeat("      - where is my invoice\n", 4900),
		"bad arguments":          tiny + "  args: [" + strings.Repeat("1,", 10_000) + "]\n",
		"bad environment": tiny + "  env:\n" + func() (s string) {
			for i := range 1900 {
				s += fmt.Sprintf("    %d-x: y\n", i)
			}
			return s
		}(),
		"text":  tiny + "  args: [\"" + strings.Repeat("x", MaxFile-2000) + "\"]\n",
		"block": tiny + "  args:\n  - |\n" + fill("    x\n", MaxFile-2000),
	}
	for _, unit := range units {
		for _, before := range []string{"", "[", "{", "{\t", "a: ", "- "} {
			text := func(size int) []byte { return []byte(before + strings.Repeat(unit, (size-len(before))/len(unit))) }
			name := fmt.Sprintf("%q after %q", unit, before)
			checkMemory(t, name, func() { Decode("f.yaml", text(MaxFile)) })
			checkMemory(t, name+", of a tenant", func() { DecodeTenant("f.yaml", text(MaxTenant)) })
		}
	}
	for name, text := range rows {
		decodeAll(t, name, []byte(text))
	}
	// What the program reads today stays readable.
	if _, err := Decode("f.yaml", []byte(fill(model, 300*len(model)))); err != nil && !strings.Contains(err.Error(), "tiny") {
		t.Error(err)
	}
}

// TestTenantBound: what a tenant wrote is at most MaxTenant bytes.
func TestTenantBound(t *testing.T) {
	text := tiny + strings.Repeat("#", MaxTenant-len(tiny))
	text = strings.Replace(text, "##", "# ", 1)
	if _, err := DecodeTenant("f.yaml", []byte(tiny)); err != nil {
		t.Error(err)
	}
	_, err := DecodeTenant("f.yaml", []byte(text+" "))
	if err == nil || err.Error() != "f.yaml: the file is larger than 32 KiB (weights and data do not belong in here)" {
		t.Error(err)
	}
}

// TestParserPanic: a panic of the parser is a Problem.
func TestParserPanic(t *testing.T) {
	var into struct {
		A chan int `json:"a"` // no kind that the decoder knows
	}
	if err := DecodeInto("f.yaml", []byte("a: 1\n"), &into); err == nil || !strings.Contains(err.Error(), "the parser failed") {
		t.Errorf("%v", err)
	}
}

// FuzzMemory repeats what the fuzzer finds up to the largest size.
func FuzzMemory(f *testing.F) {
	for _, u := range units {
		f.Add("", u, false)
		f.Add("[", u, true)
	}
	f.Add("{\t", "[", false)
	f.Add(tiny, "  adapters: [*a]\n", true)
	f.Add(strings.Repeat(tiny+"---\n", 300), "#", false)
	f.Fuzz(func(t *testing.T, before, unit string, small bool) {
		size := MaxFile
		if small {
			size = MaxTenant
		}
		if unit == "" || len(before)+len(unit) > size {
			return
		}
		text := []byte(before + strings.Repeat(unit, (size-len(before))/len(unit)))
		checkMemory(t, "Decode", func() { Decode("f.yaml", text) })
	})
}

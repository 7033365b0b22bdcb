package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest = regexp.MustCompile("`([a-z0-9/_-]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)`")
	rowID     = regexp.MustCompile(`(?m)^\| ((?:[HMLF]|A-)\d+)\b`)
)

// TestSecurityTests: each row of the table of security names tests that exist, or says that
// there is none, and no row is missing.
func TestSecurityTests(t *testing.T) {
	page, err := os.ReadFile("security-tests.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{} // of the tests of a package
	exists := func(folder, test string) bool {
		if _, read := sources[folder]; !read {
			files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				sources[folder] += string(b)
			}
		}
		return strings.Contains(sources[folder], "\nfunc "+test+"(")
	}
	rows := map[string]int{}
	for line := range strings.Lines(string(page)) {
		m := rowID.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		rows[m[1]]++
		named := namedTest.FindAllStringSubmatch(line, -1)
		if len(named) == 0 && !strings.Contains(line, "| none |") {
			t.Errorf("%s names no test, and does not say none", m[1])
		}
		for _, n := range named {
			if !exists(n[1], n[2]) {
				t.Errorf("%s: there is no test %s in %s", m[1], n[2], n[1])
			}
		}
	}
	for letter, last := range map[string]int{"H": 5, "M": 11, "L": 14, "A-": 26, "F": 36} {
		for i := range last {
			if id := fmt.Sprint(letter, i+1); rows[id] != 1 {
				t.Errorf("there are %d rows %s", rows[id], id)
			}
			delete(rows, fmt.Sprint(letter, i+1))
		}
	}
	for id := range rows {
		t.Errorf("the row %s is of nothing known", id)
	}
}

package catalog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// MaxExamples bounds the files of examples of one Router together, in bytes.
const MaxExamples = 8 << 20

// exampleFiles are the files of examples that were read for the documents of a file, by
// path.
type exampleFiles map[string]*exampleFile

// exampleFile is the version of a file that was read, and that of the last look.
type exampleFile struct{ read, lastSeen fileVersion }

// changed looks at the files and reports whether one is not as it was read; with wait only
// if it has stood still since the last look.
func (e exampleFiles) changed(wait bool) bool {
	any := false
	for path, f := range e {
		now := versionNow(path)
		any = any || now != f.read && (!wait || now == f.lastSeen)
		f.lastSeen = now
	}
	return any
}

// versionNow is the version of a file; that of a missing one is zero.
func versionNow(path string) fileVersion {
	info, err := os.Stat(path)
	if err != nil {
		return fileVersion{}
	}
	return versionOf(path, info)
}

// readExamples reads the files that the intents of r name into Loaded.
func (d *decoder) readExamples(r *functions.Router) (problems []functions.Problem) {
	texts := map[string]map[string][]string{} // by path and intent; nil: it cannot be used
	left := int64(MaxExamples)
	for i := range r.Spec.Intents.List {
		in := &r.Spec.Intents.List[i]
		if in.ExamplesFrom == "" {
			continue
		}
		at := fmt.Sprintf("spec.intents.list[%d].examplesFrom", i)
		path := in.ExamplesFrom
		if !filepath.IsAbs(path) {
			path = filepath.Join(r.Dir, path)
		}
		byIntent, read := texts[path]
		if !read {
			version := versionNow(path) // before it is read, so that a later change is noticed
			d.examples[path] = &exampleFile{version, version}
			var message string
			if byIntent, message = parseExamples(path, &left); message != "" {
				problems = append(problems, functions.Problem{Path: at, Message: message, Hint: `lines such as {"text": "where is my invoice", "intent": "billing"}`})
			}
			texts[path] = byIntent
		}
		if byIntent == nil {
			continue
		}
		if in.Loaded = byIntent[in.Name]; len(in.Loaded) == 0 {
			intents := slices.Sorted(maps.Keys(byIntent))
			hint := cmp.Or(functions.DidYouMean(in.Name, intents, 1), "its intents are "+functions.Clip(strings.Join(intents, ", ")))
			problems = append(problems,
				functions.Problem{Path: at, Message: fmt.Sprintf("no line of %s has the intent %s", in.ExamplesFrom, in.Name), Hint: hint})
		}
	}
	return problems
}

// parseExamples reads a file of lines {"text", "intent"}; other keys are ignored. left is
// what may still be read.
func parseExamples(path string, left *int64) (byIntent map[string][]string, problem string) {
	data, err := readFile(path, *left)
	if err != nil {
		return nil, "cannot be read: " + err.Error()
	}
	if int64(len(data)) > *left {
		return nil, fmt.Sprintf("the examples of a router are at most %s together", functions.Bytes(MaxExamples).Human())
	}
	*left -= int64(len(data))
	byIntent = map[string][]string{}
	number := 0
	for line := range bytes.Lines(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))) {
		number++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		var example struct{ Text, Intent *string }
		what := ""
		switch err := json.Unmarshal(line, &example); {
		case err != nil:
			what = "no JSON object with text and intent as strings"
		case example.Text == nil:
			what = "there is no text"
		case example.Intent == nil:
			what = "there is no intent"
		default:
			what = functions.CheckExample(*example.Text)
		}
		if what != "" {
			return nil, fmt.Sprintf("%s, line %d: %s", path, number, what)
		}
		byIntent[*example.Intent] = append(byIntent[*example.Intent], *example.Text)
	}
	return byIntent, ""
}

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const batchGuide, batchFolder = "../../deploy/docs/batch.md", "deploy/example/batch"

var idOf = regexp.MustCompile(`^\{"id":"(file-|batch_)[0-9a-f]+"`)

// TestBatchGuide does what the guide of batches has its reader do, with the files of the
// example, which are the guide's.
func TestBatchGuide(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(batchGuide)
	if err != nil {
		t.Fatal(err)
	}
	page, files := string(b), map[string]string{}
	for _, name := range []string{"small.yaml", "large.yaml", "requests.jsonl"} {
		text, err := os.ReadFile(filepath.Join("../..", batchFolder, name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(page, "\n"+strings.ReplaceAll(string(text), "large}", "small}")+"```") {
			t.Errorf("%s is not the guide's", name)
		}
		if files[name] = strings.Replace(string(text), "../../../functions/shipped/tiny", tinyDir(t), 1); name == "requests.jsonl" {
			delete(files, name)
		}
	}
	p := start(t, files)
	words, asked := map[string]string{}, 0
	for _, block := range guideCommands.FindAllStringSubmatch(page, -1) {
		for _, c := range readCommands(block[1]) {
			if c.words[0] != "curl" {
				continue // the server
			}
			for i, w := range c.words {
				for from, to := range words {
					w = strings.ReplaceAll(w, from, to)
				}
				c.words[i] = w
			}
			asked++
			if strings.HasSuffix(strings.Join(c.words, " "), "/v1/batches/"+words["BATCH"]) {
				b := p.ended(words["BATCH"])
				if b.Status != "completed" || b.Counts.Completed != 4 || b.OutputFileID == nil {
					t.Fatalf("%+v", b)
				}
				words["OUTPUT"] = *b.OutputFileID
			}
			lines := strings.Split(strings.TrimSpace(p.try(c)), "\n")
			if id := idOf.FindString(lines[len(lines)-1]); strings.Contains(id, "file-") {
				words["FILE"] = strings.Trim(strings.TrimPrefix(id, `{"id":`), `"`)
			} else if id != "" {
				words["BATCH"] = strings.Trim(strings.TrimPrefix(id, `{"id":`), `"`)
			}
		}
	}
	if asked != 5 {
		t.Errorf("%d commands were tried", asked)
	}
	if list := p.do("GET", "/v1/files", ""); strings.Contains(list.body, words["FILE"]) || !strings.Contains(list.body, words["OUTPUT"]) {
		t.Errorf("%s", list.body)
	}
}

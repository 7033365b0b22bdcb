package main

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	guidePages   = "../../deploy/docs/"
	guideFolders = "deploy/example/"
	guideAddress = "http://127.0.0.1:8080"
	guideCloud   = "http://127.0.0.1:8081"
)

var (
	guideFile     = regexp.MustCompile("(?s)`([a-z-]+\\.yaml)`[^\n]*:\n\n```yaml\n(.*?)```")
	guideCommands = regexp.MustCompile("(?s)```sh\n(.*?)```")
)

// TestRouterGuide does what the guide of Routers has its reader do. The files are the
// guide's, which are those of the example, and below each command are lines of its output.
func TestRouterGuide(t *testing.T) {
	t.Parallel()
	cloud := newCloudAPI(t)
	if n := doGuide(t, "router", cloud.URL, 5, "small", "coder", "large"); n < 10 {
		t.Errorf("%d commands were tried", n)
	}
	if n := len(cloud.seen()); n != 1 {
		t.Errorf("%d requests left, want one", n)
	}
}

// TestCompositionGuide does what the guide of Compositions has its reader do.
func TestCompositionGuide(t *testing.T) {
	t.Parallel()
	if n := doGuide(t, "compositions", newThinker(t).URL, 7, "small-a", "small-b"); n != 7 {
		t.Errorf("%d commands were tried", n)
	}
}

// doGuide does what a guide has its reader do, with the example of its name, and returns how
// many commands those were. cloud stands for the provider. The file of the model named first
// of alike stands in the guide for all of them.
func doGuide(t *testing.T, name, cloud string, count int, alike ...string) (asked int) {
	page, err := os.ReadFile(guidePages + name + ".md")
	if err != nil {
		t.Fatal(err)
	}
	files := guideFiles(t, string(page), guideFolders+name, count, alike)
	for name, text := range files {
		text = strings.Replace(text, "../../../functions/shipped/tiny", tinyDir(t), 1)
		files[name] = strings.Replace(text, guideCloud, cloud, 1)
	}
	p := start(t, files)
	for _, block := range guideCommands.FindAllStringSubmatch(string(page), -1) {
		for _, c := range readCommands(block[1]) {
			if len(c.want) == 0 && !slices.Contains(c.words, "stop") && !slices.Contains(c.words, "check") {
				continue // the servers, and commands with a word to fill in
			}
			asked++
			p.try(c)
		}
	}
	return asked
}

// guideFiles are the files that the guide shows, which the example has too.
func guideFiles(t *testing.T, page, folder string, count int, alike []string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, m := range guideFile.FindAllStringSubmatch(page, -1) {
		files[m[1]] = m[2]
		if m[1] == alike[0]+".yaml" {
			for _, like := range alike[1:] {
				files[like+".yaml"] = strings.ReplaceAll(m[2], alike[0], like)
			}
		}
	}
	list, err := filepath.Glob("../../" + folder + "/*.yaml")
	if err != nil || len(list) != len(files) || len(files) != count {
		t.Fatalf("the guide has %d files, the example %v (%v)", len(files), list, err)
	}
	for _, path := range list {
		if b, err := os.ReadFile(path); err != nil || string(b) != files[filepath.Base(path)] {
			t.Errorf("%s is not the guide's: %v", path, err)
		}
	}
	return files
}

// command is one of a guide, with lines that its output has.
type command struct {
	words []string
	want  []string
}

func readCommands(block string) (list []command) {
	for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", " ")) {
		line = strings.TrimSpace(line)
		if want, ok := strings.CutPrefix(line, "#> "); ok {
			last := &list[len(list)-1]
			last.want = append(last.want, strings.Join(strings.Fields(want), " "))
		} else if words := splitWords(line); len(words) > 0 {
			list = append(list, command{words: words})
		}
	}
	return list
}

// splitWords splits a line as a shell does that knows blanks, quotes and comments.
func splitWords(line string) (words []string) {
	var quote rune
	word, begun := "", false
	for _, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, begun = c, true
		case quote == 0 && c == '#' && !begun:
			return words
		case quote == 0 && c == ' ':
			if begun {
				words = append(words, word)
			}
			word, begun = "", false
		default:
			word, begun = word+string(c), true
		}
	}
	if begun {
		words = append(words, word)
	}
	return words
}

// try runs a command of a guide and returns its output. What a verb prints may take until a
// model is ready.
func (p *platform) try(c command) (output string) {
	p.t.Helper()
	missing := func() string {
		for _, want := range c.want {
			if !slices.ContainsFunc(strings.Split(output, "\n"), func(line string) bool {
				return strings.HasPrefix(strings.Join(strings.Fields(line), " "), want)
			}) {
				return want
			}
		}
		return ""
	}
	switch c.words[0] {
	case "curl":
		// Quotations stand between random marks, and after some of those the answer of the tiny
		// model is empty, which fails a Composition.
		for sent := 0; sent == 0 || sent < 5 && strings.Contains(output, "the answer is empty"); sent++ {
			output = p.curl(c.words[1:])
		}
	case "bin/thaw":
		end := time.Now().Add(patience)
		for ok := false; !ok; ok = missing() == "" || time.Now().After(end) {
			output = p.verb(c.words[1:])
		}
	default:
		p.t.Errorf("the guide has an unknown command: %q", c.words)
	}
	if want := missing(); want != "" {
		p.t.Errorf("%q\nwant the line %q of\n%s", c.words, want, output)
	}
	return output
}

func (p *platform) verb(words []string) string {
	var out, errs strings.Builder
	args := append(slices.Clone(words), "--server", p.url, "--data", p.data)
	if i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, guideFolders) }); i >= 0 {
		args[i] = p.functions
	}
	if code := run(p.t.Context(), args, strings.NewReader(""), &out, &errs); code != 0 {
		p.t.Errorf("thaw %v: %d %s", words, code, &errs)
	}
	return out.String()
}

// curl sends what curl -i would, and returns what that prints.
func (p *platform) curl(words []string) string {
	var body, path string
	var header []string
	method := "GET"
	var parts bytes.Buffer
	form := multipart.NewWriter(&parts)
	for i := 0; i < len(words); i++ {
		switch words[i] {
		case "-i":
		case "-d":
			i++
			method, body = "POST", words[i]
		case "-X":
			i++
			method = words[i]
		case "-F":
			i++
			name, value, _ := strings.Cut(words[i], "=")
			method = "POST"
			if file, ok := strings.CutPrefix(value, "@"); ok {
				text, err := os.ReadFile(filepath.Join("../..", file))
				w, _ := form.CreateFormFile(name, filepath.Base(file))
				if _, err2 := w.Write(text); err != nil || err2 != nil {
					p.t.Error(err, err2)
				}
			} else {
				form.WriteField(name, value)
			}
		case "-H":
			i++
			name, value, _ := strings.Cut(words[i], ": ")
			header = append(header, name, value)
		default:
			var ok bool
			if path, ok = strings.CutPrefix(words[i], guideAddress); !ok {
				p.t.Errorf("curl: %q", words[i])
			}
		}
	}
	if form.Close(); method == "POST" && body == "" {
		body, header = parts.String(), append(header, "Content-Type", form.FormDataContentType())
	}
	r := p.do(method, path, body, header...)
	out := fmt.Sprintf("HTTP/1.1 %d %s\n", r.status, http.StatusText(r.status))
	for name, values := range r.header {
		out += strings.ToLower(name) + ": " + values[0] + "\n"
	}
	return out + "\n" + r.body
}

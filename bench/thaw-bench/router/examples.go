package router

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
)

// examples.txt has requests that were written for fitting, below a line "# LABEL" those of a
// label, each with what may vary: one of {a|b|c}, and the places @T for a text of several
// sentences, @S a sentence, @D a dialogue, @C a text in Chinese, @C1 a few characters of one,
// @K code, @F and @F2 a fact, @W a word, @N a name, @# a number. They were written after what
// the first five hold-outs got wrong, and before the sixth was chosen.
//
//go:embed examples.txt
var examplesFile string

// forms.txt has more of them, as products of an instruction, a kind of passage and a form of the
// answer: a line "=NAME TEXT" is what {=NAME} stands for, and ‹ and › stand for braces. They were
// written after what the sixth hold-out got wrong, and before the seventh was chosen.
//
//go:embed forms.txt
var formsFile string

// tasks.txt has more of them, with the names of forms.txt: the same forms of an answer, asked of different tasks. They
// were written after what the seventh hold-out got wrong, and before the eighth was chosen.
//
//go:embed tasks.txt
var tasksFile string

// advice.txt has more of them, most of them questions, advice, chat and writing, in many languages, with the names of
// forms.txt. They were written after what the eighth hold-out got wrong, with the names of the ninth known; see [heldOut].
//
//go:embed advice.txt
var adviceFile string

// puzzles.txt has more of them, puzzles and what else may have their form, requests for code in many languages and roles among
// them. They were written after what the ninth hold-out got wrong, the last of them, questions about a passage, with the names of
// the tenth known.
//
//go:embed puzzles.txt
var puzzlesFile string

// wraps.txt has what prompts of every label may stand in, with the place @P for the prompt: headings, roles, rules, tags and marks
// of an answer. Each prompt is fitted on in some of them too, so that they say nothing about the label.
//
//go:embed wraps.txt
var wrapsFile string

const (
	perExample  = 20 // texts that are made of one
	perFamily   = 3  // examples that count as one repository
	longPassage = 150

	exampleRepository = "examples"
)

// exampleSources are what the texts of the examples are from.
var exampleSources = struct{ texts, chinese, code []string }{
	texts:   []string{"circle-hit/SAPT"},
	chinese: []string{"Abbey4799/CELLO", "LianjiaTech/BELLE"},
	code:    []string{"amazon-science/mxeval", "FudanSELab/ClassEval"},
}

// generator makes texts of examples.
type generator struct {
	random                                                   *rand.Rand
	texts, sentences, dialogues, chinese, code, words, facts []string
	named                                                    map[string]string
}

var (
	names   = strings.Fields("Anna Ben Carla Deepak Emma Farid Grace Hugo Ines Jamal Kira Liam Mona Noah Olga Pedro Quinn Rosa Sam Tara")
	numbers = strings.Fields("2 3 4 5 7 8 10 12 15 20 24 30 48 60 100 120 250")
	facts   = strings.Split("If @N studies, @N passes the exam.|All cats are animals.|Every person who likes tea is calm.|No @W is a @W.|"+
		"Either @N goes to the park or @N stays at home.|@N does not like coffee.|"+
		"If someone is sick, they stay in bed.|@N is a teacher or a doctor.|"+
		"Some birds cannot fly.|It rained, so the street was wet.|@N arrived before @N.|Whoever owns a dog walks every day.", "|")

	oneMark    = regexp.MustCompile(`\[([^\[])([^\]])\]`)
	endOfPart  = regexp.MustCompile(`[.!?] |\n`)
	instructed = regexp.MustCompile(`请|总结|概括|写|根据|要求|？|以下|下面`)
	braces     = strings.NewReplacer("‹", "{", "›", "}")
	place      = regexp.MustCompile(`@(F2|C1|[TSDCKFWN#])`)
)

// makeExamples makes the texts of examples.txt and the files after it; those whose passages are of sources that are not
// there are left out.
func makeExamples(prompts []Prompt) (list []Prompt) {
	g := newGenerator(prompts)
	for _, file := range []string{examplesFile, formsFile, tasksFile, adviceFile, puzzlesFile} {
		label := ""
		var source *Source
		n := 0
		for _, line := range g.readLines(file) {
			if name, ok := strings.CutPrefix(line, "# "); ok {
				label, n = name, 0
				continue
			}
			if n%perFamily == 0 {
				source = &Source{Name: "examples", Repository: fmt.Sprintf("%s of %s %d %d", exampleRepository, label, len(file), n/perFamily)}
			}
			n++
			for range perExample {
				if text, ok := g.expand(line); ok {
					list = append(list, Prompt{source, text, label})
				}
			}
		}
	}
	return list
}

// wrapper puts prompts into the forms of wraps.txt.
type wrapper struct {
	generator
	forms []string
}

func newWrapper() *wrapper {
	w := &wrapper{generator: generator{random: rand.New(rand.NewPCG(26, 6)), named: map[string]string{}}}
	w.forms = w.readLines(wrapsFile)
	return w
}

// wrap puts a prompt into one of the forms.
func (w *wrapper) wrap(text string) string {
	form := strings.ReplaceAll(w.choose(w.pick(w.forms)), `\n`, "\n")
	before, after, _ := strings.Cut(form, "@P")
	return before + text + after
}

// readLines returns the lines of a file; a line "=NAME TEXT" names a text and is none of them.
func (g *generator) readLines(file string) (lines []string) {
	for line := range strings.Lines(file) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "="); ok {
			name, text, _ := strings.Cut(rest, " ")
			g.named[name] = text
			continue
		}
		lines = append(lines, line)
	}
	return lines
}

func newGenerator(prompts []Prompt) *generator {
	g := &generator{random: rand.New(rand.NewPCG(26, 5)), facts: facts, named: map[string]string{}}
	from := func(p *Prompt, repositories []string) bool {
		for _, r := range repositories {
			if p.Source.Repository == r && !p.Source.Held {
				return true
			}
		}
		return false
	}
	for i := range prompts {
		switch p := &prompts[i]; {
		case p.Label == General && from(p, exampleSources.texts):
			if _, text, ok := strings.Cut(p.Text, "\n"); ok && len(text) > longPassage {
				g.addText(text)
			}
		case p.Label == General && from(p, exampleSources.chinese):
			for part := range strings.SplitAfterSeq(p.Text, "。") {
				if n := len([]rune(part)); n > 20 && n < 200 && len(part) > 2*n && !instructed.MatchString(part) {
					g.chinese = append(g.chinese, part)
				}
			}
		case p.Label == Code && from(p, exampleSources.code):
			g.code = append(g.code, p.Text)
		}
	}
	return g
}

func (g *generator) addText(text string) {
	g.texts = append(g.texts, text)
	if strings.Count(text, ":") > 3 && strings.Contains(text, "\n") {
		g.dialogues = append(g.dialogues, text)
	}
	for _, s := range endOfPart.Split(text, -1) {
		if len(s) > 40 && len(s) < 300 {
			g.sentences = append(g.sentences, s+".")
		}
		for word := range strings.FieldsSeq(s) {
			if len(word) > 3 && !strings.ContainsFunc(word, func(r rune) bool { return r|0x20 < 'a' || r|0x20 > 'z' }) {
				g.words = append(g.words, word)
			}
		}
	}
}

// expand makes one text of an example, if there is a passage for each of its places.
func (g *generator) expand(example string) (text string, ok bool) {
	example = g.choose(example)
	example = oneMark.ReplaceAllStringFunc(example, func(s string) string { return s[1+g.random.IntN(2):][:1] })
	example = strings.ReplaceAll(example, `\n`, "\n")
	ok = true
	var fill func(string) string
	fill = func(name string) string {
		s := ""
		switch name {
		case "@T":
			s = cutText(g.pick(g.texts), []int{300, 600, 1200, 2500}[g.random.IntN(4)])
		case "@S":
			s = g.pick(g.sentences)
		case "@D":
			s = cutText(g.pick(g.dialogues), 800)
		case "@C1":
			s = string([]rune(g.pick(g.chinese) + strings.Repeat(" ", 12))[:12])
		case "@C":
			for range 1 + g.random.IntN(3) {
				s += g.pick(g.chinese)
			}
		case "@K":
			s = cutText(g.pick(g.code), 900)
		case "@F", "@F2":
			s = place.ReplaceAllStringFunc(g.pick(g.facts), fill)
		case "@W":
			s = g.pick(g.words)
		case "@N":
			s = g.pick(names)
		case "@#":
			s = g.pick(numbers)
		}
		ok = ok && s != ""
		return s
	}
	text = place.ReplaceAllStringFunc(example, fill)
	return braces.Replace(text), ok
}

// choose replaces each {a|b|c} by one of its parts, and {=NAME} by what is named so.
func (g *generator) choose(text string) string {
	start := strings.IndexByte(text, '{')
	if start < 0 {
		return text
	}
	var parts []string
	depth, from := 0, start+1
	for i := start; i < len(text); i++ {
		switch c := text[i]; {
		case c == '{':
			depth++
		case c == '|' && depth == 1:
			parts = append(parts, text[from:i])
			from = i + 1
		case c == '}' && depth > 1:
			depth--
		case c == '}':
			part := g.pick(append(parts, text[from:i]))
			if name, ok := strings.CutPrefix(part, "="); ok {
				part = g.named[name]
			}
			return text[:start] + g.choose(part) + g.choose(text[i+1:])
		}
	}
	return text
}

// pick returns one of a list, "" of none.
func (g *generator) pick(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[g.random.IntN(len(list))]
}

func cutText(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

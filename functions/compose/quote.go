package compose

import (
	"cmp"
	"embed"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// promptVersion is the directory of the prompts. A change of a prompt's meaning is a new one.
const promptVersion = "v1"

//go:embed prompts/v1/*.txt
var promptFiles embed.FS

func readPrompt(name string) string {
	raw, err := promptFiles.ReadFile("prompts/" + promptVersion + "/" + name + ".txt")
	if err != nil {
		panic(err) // the files are part of the program; a test reads each
	}
	return strings.TrimSpace(string(raw))
}

var (
	promptEnsemble  = readPrompt("ensemble")
	promptRevise    = readPrompt("revise")
	promptDebate    = readPrompt("debate")
	promptAnalyse   = readPrompt("analyse")
	promptAgent     = readPrompt("agent")
	promptCritic    = readPrompt("critic")
	promptMaestro   = readPrompt("maestro")
	promptDecompose = readPrompt("decompose")
	promptSubtask   = readPrompt("subtask")
	promptGraph     = readPrompt("graph")
	promptRepair    = readPrompt("repair")
)

// fillPrompt replaces {{name}} by value, given in pairs. A value is not searched again.
func fillPrompt(prompt string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		pairs[i] = "{{" + pairs[i] + "}}"
	}
	return strings.NewReplacer(pairs...).Replace(prompt)
}

// defaultQuoted bounds the quoted texts of one message in bytes, so that a member that
// repeats itself without end does not fill the reader's context.
const defaultQuoted = 128 << 10

// quotation is a text of a model, or a part of a model's plan, that another model reads.
type quotation struct{ title, text string }

// quote returns the quotations, each between two lines with one random mark. The mark is
// drawn now, after every quoted text was complete, and again if one should contain it:
// the members saw the marks of earlier messages, never this one.
func (r *run) quote(list ...quotation) string {
	texts, size := make([]string, len(list)), 0
	for i, q := range list {
		texts[i] = strings.ToValidUTF8(q.text, "\uFFFD")
	}
	bound := fairBound(texts, r.plan.Quoted)
	for i, q := range list {
		texts[i] = clipText(texts[i], bound)
		size += len(q.title) + len(texts[i]) + 100
	}
	mark := r.plan.Mark()
	for slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(t, mark) }) {
		mark = r.plan.Mark()
	}
	var b strings.Builder
	b.Grow(size)
	for i, q := range list {
		if i > 0 {
			b.WriteString("\n\n")
		}
		fmt.Fprintf(&b, "%s:\n<<<begin %s>>>\n%s\n<<<end %s>>>", q.title, mark, texts[i], mark)
	}
	return b.String()
}

// fairBound returns the largest b for which texts, each cut to b bytes, have at most total
// bytes together (max-min fairness: short texts leave their share to the long ones).
func fairBound(texts []string, total int) int {
	total = cmp.Or(total, defaultQuoted)
	sizes := make([]int, len(texts))
	for i, t := range texts {
		sizes[i] = len(t)
	}
	slices.Sort(sizes)
	for i, size := range sizes {
		if share := total / (len(sizes) - i); size > share {
			return share
		}
		total -= size
	}
	return math.MaxInt
}

// clipText cuts text behind at most n bytes and says so.
func clipText(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return fmt.Sprintf("%s\n[%d more bytes are cut off here]", text[:n], len(text)-n)
}

// quoteIn fills the quotations into prompt as {{answers}}, and the pairs.
func (r *run) quoteIn(prompt string, list []quotation, pairs ...string) string {
	return fillPrompt(prompt, append(pairs, "answers", r.quote(list...))...)
}

// visible returns text without the reasoning that some models write in front of it.
func visible(text string) string {
	if rest, ok := strings.CutPrefix(strings.TrimSpace(text), "<think>"); ok {
		if _, answer, ok := strings.Cut(rest, "</think>"); ok {
			return strings.TrimSpace(answer)
		}
	}
	return text
}

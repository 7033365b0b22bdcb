package socket

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/router"
	"github.com/thaw-dev/thaw/activator/router/intents"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Decision is the processor time of one decision about a text with a new word, in seconds.
type Decision struct {
	Text  string  `json:"text"`
	Bytes int     `json:"mean_bytes"`
	P50   float64 `json:"p50_seconds"`
	P99   float64 `json:"p99_seconds"`
}

// Accuracy is what a classifier makes of labelled texts that it has not seen.
type Accuracy struct {
	Fitted    string  `json:"fitted_on"`
	Examples  int     `json:"examples"`
	Right     float64 `json:"right"`       // of the texts that have an intent
	Confident float64 `json:"confident"`   // of those, at or above the threshold
	Sure      float64 `json:"right_of_it"` // of the confident ones
	Rejected  float64 `json:"rejected"`    // of the texts that have none
	Levels    []Level `json:"levels"`      // of all texts, in order
}

// Level is the texts whose confidence is at or above From and below the next level. A text
// without an intent counts as right where it is given none.
type Level struct {
	From       float64 `json:"from"`
	Texts      int     `json:"texts"`
	Right      int     `json:"right"`
	Confidence float64 `json:"sum_of_confidence"`
}

// levels are those of [Accuracy], of no text yet. One is around the threshold.
func levels() []Level {
	return []Level{{From: 0}, {From: 0.25}, {From: 0.45}, {From: nearThreshold}, {From: 0.85}, {From: 0.95}}
}

// nearThreshold is where the level around the threshold begins.
const nearThreshold = 0.65

// rightNear is the share of right ones of the texts whose confidence is near the threshold.
func (a *Accuracy) rightNear() float64 {
	for _, l := range a.Levels {
		if l.From == nearThreshold {
			return float64(l.Right) / float64(max(l.Texts, 1))
		}
	}
	return 0
}

const (
	manyIntents = 150
	threshold   = 0.6
	trainFile   = "clinc-train.jsonl"
	checkFile   = "clinc-val.jsonl"
	draws       = 5
	fewExamples = 10
	chatPath    = "/v1/chat/completions"

	// shareThreshold is a Router's own default, which accuracies are about.
	shareThreshold = router.DefaultThreshold
)

// intent is one intent with examples and a text that is clearly of it, late or early.
type intent struct {
	name        string
	examples    []string
	text, early string
}

// makeIntents makes up intents, each with four words that no other has.
func makeIntents(n int) []intent {
	random := rand.New(rand.NewPCG(27, 1))
	taken := map[string]bool{}
	word := func() string {
		for {
			var b strings.Builder
			for range 3 {
				b.WriteByte("bdfgklmnprstv"[random.IntN(13)])
				b.WriteByte("aeiou"[random.IntN(5)])
			}
			if w := b.String() + "s"; !taken[w] {
				taken[w] = true
				return w
			}
		}
	}
	phrases := []string{"where is my %s %s", "please send the %s of the %s again", "i want to change a %s or %s", "why was my %s %s twice", "show me the %s and the %s",
		"when will the %s %s arrive", "how do i get another %s for my %s", "can you look at the %s with the %s", "the %s is not a %s", "tell me about %s and %s"}
	var list []intent
	for i := range n {
		x := intent{name: fmt.Sprintf("intent-%03d", i)}
		own := []string{word(), word(), word(), word()}
		for k, p := range phrases {
			x.examples = append(x.examples, fmt.Sprintf(p, own[k%4], own[(k+1)%4]))
		}
		x.text = fmt.Sprintf("please tell me where the %s and the %s %s are", own[0], own[1], own[2])
		x.early = fmt.Sprintf("my %s and %s are not here please tell me where", own[0], own[1])
		list = append(list, x)
	}
	return list
}

// labelled is a text and its intent; "" where it has none.
type labelled struct {
	Text   string `json:"text"`
	Intent string `json:"intent"`
}

func readLabelled(file string) (list []labelled, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var x labelled
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		list = append(list, x)
	}
	return list, lines.Err()
}

// measureIntents times decisions with 150 intents, and checks the classifier on labelled
// texts where they are there.
func measureIntents(ctx context.Context, o *Options) (list []Decision, accuracy []Accuracy, missing []string, err error) {
	train, err := readLabelled(filepath.Join(o.Texts, trainFile))
	var check []labelled
	if err == nil {
		check, err = readLabelled(filepath.Join(o.Texts, checkFile))
	}
	if errors.Is(err, fs.ErrNotExist) {
		missing, err = []string{trainFile + " and " + checkFile + " (--texts)"}, nil
		for _, x := range makeIntents(manyIntents) {
			for _, text := range x.examples {
				train = append(train, labelled{text, x.name})
			}
			check = append(check, labelled{x.text, x.name})
		}
	}
	if err != nil {
		return nil, nil, missing, err
	}
	if list, err = measureDecisions(ctx, o.Decisions, train, check); err != nil || len(missing) > 0 {
		return list, nil, missing, err
	}
	o.Progress("intents: accuracy")
	accuracy = append(accuracy, checkClassifier("all examples", train, check))
	few := Accuracy{Fitted: fmt.Sprintf("%d each, mean of %d draws", fewExamples, draws), Levels: levels()}
	for seed := range draws {
		x := checkClassifier("", drawFew(train, uint64(seed)), check)
		few.Examples = x.Examples
		few.Right += x.Right / draws
		few.Confident += x.Confident / draws
		few.Sure += x.Sure / draws
		few.Rejected += x.Rejected / draws
		for i, l := range x.Levels {
			few.Levels[i].Texts += l.Texts
			few.Levels[i].Right += l.Right
			few.Levels[i].Confidence += l.Confidence
		}
	}
	return list, append(accuracy, few), missing, ctx.Err()
}

// drawFew returns fewExamples of each intent.
func drawFew(train []labelled, seed uint64) (list []labelled) {
	random := rand.New(rand.NewPCG(27, seed))
	count := map[string]int{}
	for _, i := range random.Perm(len(train)) {
		if count[train[i].Intent]++; count[train[i].Intent] <= fewExamples {
			list = append(list, train[i])
		}
	}
	return list
}

func checkClassifier(name string, train, check []labelled) Accuracy {
	x := Accuracy{Fitted: name, Examples: len(train), Levels: levels()}
	var examples []intents.Example
	for _, t := range train {
		examples = append(examples, intents.Example(t))
	}
	c := intents.Fit(examples)
	var known, right, sure, sureRight, none, rejected float64
	for _, t := range check {
		got, confidence := c.Classify(t.Text)
		at := len(x.Levels) - 1
		for x.Levels[at].From > confidence {
			at--
		}
		x.Levels[at].Texts++
		x.Levels[at].Confidence += confidence
		if got == t.Intent {
			x.Levels[at].Right++
		}
		if t.Intent == "" {
			none++
			if got == "" || confidence < shareThreshold {
				rejected++
			}
			continue
		}
		known++
		if got == t.Intent {
			right++
		}
		if got != "" && confidence >= shareThreshold {
			sure++
			if got == t.Intent {
				sureRight++
			}
		}
	}
	x.Right, x.Confident, x.Sure, x.Rejected = right/known, sure/known, sureRight/max(sure, 1), rejected/max(none, 1)
	return x
}

// measureDecisions times what a socket decides at each word: from the bytes of a request to
// the record.
func measureDecisions(ctx context.Context, n int, train, check []labelled) ([]Decision, error) {
	byName := map[string]*functions.Intent{}
	var list []functions.Intent
	for _, t := range train {
		if byName[t.Intent] == nil {
			byName[t.Intent] = &functions.Intent{Name: t.Intent}
		}
		byName[t.Intent].Examples = append(byName[t.Intent].Examples, t.Text)
	}
	for _, x := range byName {
		list = append(list, *x)
	}
	slices.SortFunc(list, func(a, b functions.Intent) int { return strings.Compare(a.Name, b.Name) })
	if len(list) != manyIntents {
		return nil, fmt.Errorf("there are %d intents, want %d", len(list), manyIntents)
	}
	r, err := router.Compile(&functions.Router{Metadata: functions.Metadata{Namespace: functions.DefaultTeam, Name: functions.AutoRouter},
		Spec: functions.RouterSpec{
			Intents: functions.Intents{List: list},
			Rules:   []functions.Rule{{Name: "known", When: functions.When{Intent: list[0].Name}, To: []string{"small"}}, {Name: "general", To: []string{"large"}}},
		}})
	if err != nil {
		return nil, err
	}
	var short, long []string
	for i, t := range check {
		short = append(short, prefixes(t.Text)...)
		if len(long) < 200 {
			long = append(long, prefixes(joinTexts(check[i:], 500))...)
		}
	}
	var out []Decision
	for _, c := range []struct {
		name  string
		texts []string
	}{{shortText, short}, {"500 bytes, at each of its words", long}, {"4 KiB", []string{joinTexts(check, 4<<10)}}} {
		d, err := timeDecisions(ctx, r, n, c.texts)
		if err != nil {
			return nil, err
		}
		d.Text = c.name
		out = append(out, d)
	}
	return out, nil
}

const shortText = "a request, at each of its words"

// joinTexts is the first n bytes of texts behind each other.
func joinTexts(list []labelled, n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		b.WriteString(list[i%len(list)].Text + ". ")
	}
	return strings.ToValidUTF8(b.String()[:n], "")
}

func timeDecisions(ctx context.Context, r *router.Router, n int, texts []string) (d Decision, err error) {
	bodies := make([][]byte, len(texts))
	for i, text := range texts {
		d.Bytes += len(text)
		if bodies[i], err = json.Marshal(map[string]any{"model": functions.AutoRouter, "messages": []map[string]string{{"role": "user", "content": text}}}); err != nil {
			return d, err
		}
	}
	d.Bytes /= len(texts)
	var typed intents.Typed
	decide := func(body []byte) error {
		env, err := openai.Peek(body)
		if err != nil {
			return err
		}
		r.Decide(router.Input{Features: r.Features(&env, body, chatPath), Typed: &typed}, func(string) functions.RouteCandidate {
			return functions.RouteCandidate{Kind: functions.KindModel, State: functions.Ready.Word(), ExpectedMS: -1, Cost: -1}
		}, func() []byte { return router.Text(&env, body, chatPath) })
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	times := make([]time.Duration, n)
	for i := -n / 10; i < n; i++ { // the first ones warm up
		began, err := threadTime()
		if err != nil {
			return d, err
		}
		if err := decide(bodies[(i+n)%len(bodies)]); err != nil {
			return d, err
		}
		if ended, err := threadTime(); err != nil {
			return d, err
		} else if i >= 0 {
			times[i] = ended - began
		}
	}
	slices.Sort(times)
	d.P50, d.P99 = times[n/2].Seconds(), times[n*99/100].Seconds()
	return d, ctx.Err()
}

package intents

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// drawTexts makes up texts of 20 intents whose words are partly common and partly another
// intent's, so that many texts are of one intent or another by chance; one in 33 has no
// intent, as in CLINC-150.
func drawTexts(random *rand.Rand, n int) (list []Example) {
	word := func(of string, i int) string { // of letters that no other kind of words has
		return fmt.Sprintf("%s%c%c%c", of, 'a'+i%26, 'a'+i*7%26, 'a'+i*11%26)
	}
	for range n {
		class := random.IntN(20)
		x := Example{Intent: fmt.Sprint("intent-", class)}
		if random.IntN(33) == 0 {
			x.Intent = ""
		}
		var words []string
		for range 2 + random.IntN(5) {
			switch p := random.Float64(); {
			case p < 0.2 && x.Intent != "":
				words = append(words, word(fmt.Sprintf("own%c", 'a'+class), random.IntN(15)))
			case p < 0.3:
				words = append(words, word(fmt.Sprintf("own%c", 'a'+random.IntN(20)), random.IntN(15)))
			case p < 0.5 && x.Intent == "":
				words = append(words, word("new", random.IntN(1000)))
			default:
				words = append(words, word("all", random.IntN(40)))
			}
		}
		x.Text = strings.Join(words, " ")
		list = append(list, x)
	}
	return list
}

// TestCalibration: a confidence of 0.75 means that three in four are right, and so for the
// others, among texts that the classifier has not seen.
func TestCalibration(t *testing.T) {
	for _, n := range []int{600, 4000} {
		random := rand.New(rand.NewPCG(27, uint64(n)))
		var train []Example
		for _, x := range drawTexts(random, n) {
			if x.Intent != "" {
				train = append(train, x)
			}
		}
		c := Fit(train)
		var all, near, sure struct{ texts, right, confidence float64 }
		for _, x := range drawTexts(random, 4000) {
			got, confidence := c.Classify(x.Text)
			for _, s := range []struct {
				of *struct{ texts, right, confidence float64 }
				in bool
			}{{&all, true}, {&near, confidence >= 0.65 && confidence < 0.85}, {&sure, confidence >= 0.75}} {
				if s.in {
					s.of.texts++
					s.of.confidence += confidence
					if got == x.Intent {
						s.of.right++
					}
				}
			}
		}
		for name, s := range map[string]struct{ share, from, to, texts float64 }{
			"all":           {all.right / all.texts, all.confidence/all.texts - 0.06, all.confidence/all.texts + 0.06, all.texts},
			"near 0.75":     {near.right / near.texts, 0.65, 0.8, near.texts},
			"0.75 and more": {sure.right / sure.texts, 0.7, 0.95, sure.texts},
		} {
			if s.share < s.from || s.share > s.to || s.texts < 300 {
				t.Errorf("%d examples, %s: %.3f of %.0f are right, want %.3f to %.3f", n, name, s.share, s.texts, s.from, s.to)
			}
		}
	}
}

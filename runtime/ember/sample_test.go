package ember

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The share of each token over many draws must be what the options say.
func TestSamplerDistribution(t *testing.T) {
	scores := []float32{2, 1, 0, -1, 1} // 1 and 4 weigh the same
	weigh := func(temp float64, ids ...int) []float64 {
		out, sum := make([]float64, len(scores)), 0.0
		for _, id := range ids {
			out[id] = math.Exp(float64(scores[id]) / temp)
			sum += out[id]
		}
		for i := range out {
			out[i] /= sum
		}
		return out
	}
	for _, c := range []struct {
		name string
		s    sampling
		want []float64
	}{
		{"plain", sampling{temperature: 1, topP: 1}, weigh(1, 0, 1, 2, 3, 4)},
		{"hot", sampling{temperature: 2, topP: 1}, weigh(2, 0, 1, 2, 3, 4)},
		{"top_k", sampling{temperature: 1, topP: 1, topK: 2}, weigh(1, 0, 1)},
		{"top_k of all", sampling{temperature: 1, topP: 1, topK: 9}, weigh(1, 0, 1, 2, 3, 4)},
		{"top_p", sampling{temperature: 1, topP: 0.6}, weigh(1, 0, 1)},
		{"top_p most", sampling{temperature: 1, topP: 0.95}, weigh(1, 0, 1, 2, 4)},
		{"top_p of top_k", sampling{temperature: 1, topP: 0.6, topK: 2}, weigh(1, 0)},
		{"min_p", sampling{temperature: 1, topP: 1, minP: 0.3}, weigh(1, 0, 1, 4)},
	} {
		c.s.repetition = 1
		x := newSampler(c.s, 1, nil)
		const n = 40000
		got := make([]float64, len(scores))
		for range n {
			got[x.next(slices.Clone(scores))] += 1.0 / n
		}
		for i := range got {
			if math.Abs(got[i]-c.want[i]) > 0.012 {
				t.Errorf("%s: %.3f, want %.3f", c.name, got, c.want)
				break
			}
		}
	}
}

func TestPenalties(t *testing.T) {
	run := func(s sampling, prompt []int) (out []int) {
		x := newSampler(s, 1, prompt)
		for range 6 {
			out = append(out, x.next([]float32{1.5, 1.2, 1, -1}))
		}
		return out
	}
	for _, c := range []struct {
		name   string
		s      sampling
		prompt []int
		want   []int
	}{
		{"none", sampling{repetition: 1}, nil, []int{0, 0, 0, 0, 0, 0}},
		{"presence", sampling{repetition: 1, presence: 0.4}, nil, []int{0, 1, 0, 0, 0, 0}},
		{"frequency", sampling{repetition: 1, frequency: 0.4}, nil, []int{0, 1, 0, 2, 1, 0}},
		{"repetition", sampling{repetition: 2}, nil, []int{0, 1, 2, 0, 0, 0}},
		{"repetition of the prompt", sampling{repetition: 2}, []int{0, 1, 2}, []int{0, 0, 0, 0, 0, 0}},
		{"bias", sampling{repetition: 1, bias: map[int]float64{3: 5}}, nil, []int{3, 3, 3, 3, 3, 3}},
	} {
		if got := run(c.s, c.prompt); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestLogprobsSum(t *testing.T) {
	l := []float32{3, 1, 2, 2, -5}
	norm, top := logprobs(l, 3)
	var sum float64
	for _, v := range l {
		sum += math.Exp(float64(v) - norm)
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Errorf("probabilities sum to %v", sum)
	}
	if len(top) != 3 || top[0].id != 0 || top[1].id != 2 || top[2].id != 3 || top[0].p != 3-norm {
		t.Errorf("%v", top)
	}
}

// TestGenerationConfig: the defaults of a model, and the tokens that end its answers.
func TestGenerationConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "generation_config.json")
	for content, want := range map[string]string{
		`{}`:                                    "[9] 1 1 0 1",
		`{"eos_token_id": null, "top_k": null}`: "[9] 1 1 0 1",
		`{"eos_token_id": 3, "temperature": 0.5}`:  "[9 3] 0.5 1 0 1",
		`{"eos_token_id": [3, 4], "top_p": 0.9}`:   "[9 3 4] 1 0.9 0 1",
		`{"top_k": 5, "repetition_penalty": 1.25}`: "[9] 1 1 5 1.25",
		`{"eos_token_id": "x"}`:                    "eos_token_id",
		`{"eos_token_id": [1.5]}`:                  "eos_token_id",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		m := loadedModel{eos: []int{9}}
		err := m.generation(path)
		d := m.defaults
		if got := fmt.Sprint(m.eos, d.temperature, d.topP, d.topK, d.repetition); err == nil && got != want {
			t.Errorf("%s: %s, want %s", content, got, want)
		}
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", content, err, want)
		}
	}
	m := loadedModel{}
	if err := m.generation(filepath.Join(t.TempDir(), "none")); err != nil || m.defaults.temperature != 1 {
		t.Errorf("without the file: %+v, %v", m.defaults, err)
	}
}

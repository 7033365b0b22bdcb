package ember

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json/jsontext"
	"errors"
	"math"
	"net/http"
)

// maxInputs bounds the texts of one embeddings request.
const maxInputs = 256

type embedRequest struct {
	Model      string         `json:"model"`
	Input      jsontext.Value `json:"input"`
	Encoding   string         `json:"encoding_format"`
	Dimensions *int           `json:"dimensions"`
}

type embedding struct {
	Index     int    `json:"index"`
	Object    string `json:"object"`
	Embedding any    `json:"embedding"`
}

type embedAnswer struct {
	ID      string      `json:"id"`
	Object  string      `json:"object"`
	Created int64       `json:"created"`
	Model   string      `json:"model"`
	Data    []embedding `json:"data"`
	Usage   struct {
		Prompt int `json:"prompt_tokens"`
		Total  int `json:"total_tokens"`
	} `json:"usage"`
}

// embeddings answers with the mean of the last hidden states of each text's tokens,
// scaled to length 1 as in OpenAI's API.
func (s *server) embeddings(e *engine, w http.ResponseWriter, r *http.Request) *failure {
	var g embedRequest
	if f := decodeBody(w, r, &g); f != nil {
		return f
	}
	adapter, f := s.checkModel(g.Model)
	switch {
	case f != nil:
		return f
	case g.Encoding != "" && g.Encoding != "float" && g.Encoding != "base64":
		return invalidRequest("encoding_format", "invalid_value", "encoding_format is %q, want float or base64", g.Encoding)
	case g.Dimensions != nil && *g.Dimensions != e.model.Hidden:
		return invalidRequest("dimensions", "unsupported_parameter", "dimensions: this model's embeddings have %d", e.model.Hidden)
	}
	in, f := parseInputs(g.Input, "input", maxInputs)
	if f != nil {
		return f
	}
	var qs []*sequence
	for _, x := range in {
		q := &sequence{sampling: sampling{repetition: 1}, embed: true, logprobs: -1, adapter: adapter}
		if q.prompt, f = x.encode(e.loadedModel); f == nil {
			f = checkLength(e.loadedModel, q.prompt, 0)
		}
		if f != nil {
			return f
		}
		qs = append(qs, q)
	}
	for _, q := range qs {
		if f := submitSequence(e.loop, q); f != nil {
			return f
		}
		defer e.loop.withdraw(q)
	}
	a := embedAnswer{ID: "embd-" + requestID(r), Object: "list", Created: s.created, Model: cmp.Or(g.Model, s.o.Names[0])}
	for i, q := range qs {
		p := nextPiece(r.Context(), q)
		for !p.over() {
			p = nextPiece(r.Context(), q)
		}
		if p.err != nil {
			if errors.Is(p.err, errStopped) {
				return unavailable("shutting_down", p.err.Error())
			}
			return nil
		}
		normalizeVector(p.hidden)
		d := embedding{i, "embedding", p.hidden}
		if g.Encoding == "base64" {
			b := make([]byte, 0, 4*len(p.hidden))
			for _, v := range p.hidden {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
			}
			d.Embedding = base64.StdEncoding.EncodeToString(b)
		}
		a.Data = append(a.Data, d)
		a.Usage.Prompt += len(q.prompt)
	}
	a.Usage.Total = a.Usage.Prompt
	writeJSON(w, http.StatusOK, a)
	return nil
}

func normalizeVector(x []float32) {
	var ss float64
	for _, v := range x {
		ss += float64(v) * float64(v)
	}
	if ss == 0 {
		return
	}
	r := float32(1 / math.Sqrt(ss))
	for i := range x {
		x[i] *= r
	}
}

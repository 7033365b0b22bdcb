package functions

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
)

// Endpoint is a kind of request that an engine answers, as the key serves names it.
type Endpoint string

// The endpoints that thaw routes and can probe.
const (
	ServesChat           Endpoint = "chat"
	ServesCompletions    Endpoint = "completions"
	ServesEmbeddings     Endpoint = "embeddings"
	ServesRerank         Endpoint = "rerank"
	ServesScore          Endpoint = "score"
	ServesTranscriptions Endpoint = "transcriptions"
	ServesSpeech         Endpoint = "speech"
	ServesResponses      Endpoint = "responses"
)

// Endpoints in the order in which they are probed.
var Endpoints = []Endpoint{ServesChat, ServesCompletions, ServesEmbeddings, ServesRerank, ServesScore, ServesTranscriptions, ServesSpeech, ServesResponses}

// Probe is how a command engine shows that it is READY. The zero value is auto: a request
// to an endpoint that it serves.
type Probe struct {
	None bool           `json:"-"` // its health is enough
	Path string         `json:"path,omitempty"`
	Body map[string]any `json:"body,omitempty"`
}

const (
	probeAuto = "auto"
	probeNone = "none"
)

// UnmarshalText reads auto or none.
func (p *Probe) UnmarshalText(t []byte) error {
	word := string(t)
	if word != probeAuto && word != probeNone {
		return UnknownWord(word, "probe", []string{probeAuto, probeNone, "{path: /v1/…, body: {…}}"})
	}
	*p = Probe{None: word == probeNone}
	return nil
}

// UnmarshalJSON reads one of the forms of the files.
func (p *Probe) UnmarshalJSON(b []byte) error {
	var word string
	if json.Unmarshal(b, &word) == nil {
		return p.UnmarshalText([]byte(word))
	}
	type request Probe
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var r request
	if err := d.Decode(&r); err != nil {
		return errors.New("no probe: " + err.Error())
	}
	*p = Probe(r)
	return nil
}

// MarshalJSON writes the form of the files.
func (p Probe) MarshalJSON() ([]byte, error) {
	switch {
	case p.None:
		return json.Marshal(probeNone)
	case p.Path == "" && p.Body == nil:
		return json.Marshal(probeAuto)
	}
	type request Probe
	return json.Marshal(request(p))
}

// checkProbe checks what an engine serves and how that is probed.
func (p *problems) checkProbe(s *ModelSpec) {
	checkWords(p, "spec.serves", "endpoint", s.Serves, Endpoints)
	switch probe := &s.Probe; {
	case !probe.None && probe.Path == "" && probe.Body == nil:
	case s.Engine != EngineCommand:
		p.add("spec.probe", "leave it out; serves names what the engine answers", "only a command engine has a probe of its own")
	case probe.None:
	case probe.Path == "":
		p.add("spec.probe.path", "such as /v1/rerank", "a path is needed")
	case !strings.HasPrefix(probe.Path, "/") || !printable(probe.Path) || strings.ContainsAny(probe.Path, " #"):
		p.add("spec.probe.path", "such as /v1/rerank", "%q is no path", Clip(probe.Path))
	case len(probe.Body) == 0:
		p.add("spec.probe.body", "such as {model: NAME, input: Hello}; or probe: none", "a body is needed: the probe is a POST")
	}
}

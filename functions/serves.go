package functions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	switch word := string(t); word {
	case probeAuto:
		*p = Probe{}
	case probeNone:
		*p = Probe{None: true}
	default:
		const forms = "auto, none, or {path: /v1/…, body: {…}}"
		if nearest := Nearest(word, []string{probeAuto, probeNone}, 1); len(nearest) > 0 {
			return fmt.Errorf("%q is no probe; did you mean %s? One of %s", Clip(word), nearest[0], forms)
		}
		return fmt.Errorf("%q is no probe: one of %s", Clip(word), forms)
	}
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

func endpointNames() []string {
	return ConvertAll(Endpoints, func(e Endpoint) string { return string(e) })
}

// checkProbe checks what an engine serves and how that is probed.
func (p *problems) checkProbe(s *ModelSpec) {
	names := endpointNames()
	for i, e := range s.Serves {
		at := fmt.Sprintf("spec.serves[%d]", i)
		switch {
		case !slices.Contains(Endpoints, e):
			hint := "one of " + strings.Join(names, ", ")
			if nearest := Nearest(string(e), names, 1); len(nearest) > 0 {
				hint = "did you mean " + nearest[0] + "? " + hint
			}
			p.add(at, hint, "%q is no endpoint thaw knows", Clip(string(e)))
		case slices.Contains(s.Serves[:i], e):
			p.add(at, "name each once", "%q is already there", e)
		}
	}
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

package endpoints

import "testing"

func TestFind(t *testing.T) {
	all := []*Endpoint{&Chat, &Completions, &Responses, &Messages}
	for i := range Plain {
		all = append(all, &Plain[i])
	}
	seen := map[string]bool{}
	for _, e := range all {
		if Find(e.Path) != e || seen[e.Path] {
			t.Errorf("%s: found %+v, listed before: %t", e.Path, Find(e.Path), seen[e.Path])
		}
		seen[e.Path] = true
		// Usage is a field of the stream's options, and both forms with it have an empty event.
		if e.Usage && !e.Streams || e.Usage != (e.Noop != nil) || e.Form && e.Streams {
			t.Errorf("%+v contradicts itself", *e)
		}
	}
	for _, path := range []string{"", "/", "/v1", "/v1/chat/completions/", "/v1/chat", "/V1/embeddings", "/v1/load_lora_adapter", "/sleep", "/metrics"} {
		if e := Find(path); e != nil {
			t.Errorf("%q is proxied as %s", path, e.Path)
		}
	}
}

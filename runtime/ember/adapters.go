package ember

import (
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/thaw-dev/thaw/runtime/ember/llama"
)

// adapterSet has the loaded LoRA adapters by name. A sequence keeps the adapter that it
// began with, so that unloading disturbs none.
type adapterSet struct {
	mu   sync.Mutex
	list []servedAdapter // in the order of their names; guarded by mu
}

type servedAdapter struct {
	name, path string
	adapter    *llama.Adapter // nil while it is read
}

func (s *adapterSet) search(name string) (int, bool) {
	return slices.BinarySearchFunc(s.list, name, func(a servedAdapter, n string) int { return strings.Compare(a.name, n) })
}

// lookup returns a loaded adapter, nil for none.
func (s *adapterSet) lookup(name string) *llama.Adapter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.search(name); ok {
		return s.list[i].adapter
	}
	return nil
}

// loaded lists the adapters that requests can name.
func (s *adapterSet) loaded() []servedAdapter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.list), func(a servedAdapter) bool { return a.adapter == nil })
}

// reserve takes one of so many slots for an adapter that will be read.
func (s *adapterSet) reserve(name, path string, slots int) *failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.search(name)
	switch {
	case ok && s.list[i].adapter == nil:
		return unavailable("adapter_loading", "the adapter `"+name+"` is being loaded by another request")
	case ok:
		return invalidRequest("lora_name", "adapter_loaded", "The lora adapter '%s' has already been loaded.", name)
	case len(s.list) >= slots:
		return unavailable("no_adapter_slot", "all "+strconv.Itoa(slots)+" adapter slots (--max-loras) are taken: unload an adapter first")
	}
	s.list = slices.Insert(s.list, i, servedAdapter{name: name, path: path})
	return nil
}

// finish ends the loading that reserve began; a nil adapter frees the slot.
func (s *adapterSet) finish(name string, a *llama.Adapter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, _ := s.search(name)
	if a == nil {
		s.list = slices.Delete(s.list, i, i+1)
		return
	}
	s.list[i].adapter = a
}

// remove unloads an adapter; false if it is not loaded.
func (s *adapterSet) remove(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.search(name)
	if !ok || s.list[i].adapter == nil {
		return false
	}
	s.list = slices.Delete(s.list, i, i+1)
	return true
}

// adapterRequest is the body of vLLM's calls that load and unload an adapter.
type adapterRequest struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

const maxAdapterName = 256

func (s *server) loadAdapter(e *engine, w http.ResponseWriter, r *http.Request) *failure {
	var g adapterRequest
	f := s.decodeAdapter(w, r, &g)
	switch {
	case f != nil:
	case g.Path == "":
		f = invalidRequest("lora_path", "missing_required_parameter", "lora_path is missing")
	case !filepath.IsAbs(g.Path):
		f = invalidRequest("lora_path", "invalid_value", "lora_path must be the absolute path of a folder")
	case slices.Contains(s.o.Names, g.Name):
		f = invalidRequest("lora_name", "invalid_value", "%s is the name of the model", strconv.Quote(g.Name))
	default:
		f = s.adapters.reserve(g.Name, g.Path, s.o.MaxAdapters)
	}
	if f != nil {
		return f
	}
	a, err := llama.OpenAdapter(g.Path, &e.model.Config, s.o.MaxRank)
	s.adapters.finish(g.Name, a)
	if err != nil {
		return invalidRequest("lora_path", "invalid_adapter", "the adapter %s cannot be loaded: %v (engine: vllm may take it; peft's "+
			"merge_and_unload makes a model of it)", g.Name, err)
	}
	s.o.Log.Info("adapter loaded", "adapter", g.Name, "rank", a.Rank, "bytes", a.Bytes)
	writeText(w, "Success: LoRA adapter '"+g.Name+"' added successfully.")
	return nil
}

func (s *server) unloadAdapter(_ *engine, w http.ResponseWriter, r *http.Request) *failure {
	var g adapterRequest
	if f := s.decodeAdapter(w, r, &g); f != nil {
		return f
	}
	if !s.adapters.remove(g.Name) {
		return &failure{http.StatusNotFound, "The lora adapter '" + g.Name + "' cannot be found.", "invalid_request_error", "lora_name",
			"adapter_not_found"}
	}
	s.o.Log.Info("adapter unloaded", "adapter", g.Name)
	writeText(w, "Success: LoRA adapter '"+g.Name+"' removed successfully.")
	return nil
}

func (s *server) decodeAdapter(w http.ResponseWriter, r *http.Request, g *adapterRequest) *failure {
	if f := decodeBody(w, r, g); f != nil {
		return f
	}
	switch {
	case s.o.MaxAdapters == 0:
		return invalidRequest("", "adapters_disabled", "this engine was started without --enable-lora")
	case g.Name == "":
		return invalidRequest("lora_name", "missing_required_parameter", "lora_name is missing")
	case len(g.Name) > maxAdapterName:
		return invalidRequest("lora_name", "invalid_value", "lora_name has more than %d bytes", maxAdapterName)
	}
	return nil
}

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Write([]byte(text)) // the context reports a client that has gone
}

package api

import (
	"maps"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
)

// NodeModel is a model whose weights are on a node.
type NodeModel struct {
	Model string         `json:"model"`
	Tier  functions.Tier `json:"tier"`
}

func (n NodeModel) TierWord() string {
	if n.Tier == functions.TierDRAM {
		return "memory"
	}
	return "disk"
}

// Sources are the names of models by where their weights come from.
type Sources map[string][]string

// Add notes a model. dir is the folder of its file; a source that cannot be read is
// near nowhere.
func (s Sources) Add(model, source, dir string) {
	if _, at, err := loader.Locate(source, dir); err == nil {
		s[at] = append(s[at], model)
	}
}

// CachedModels are the models that are near where a store holds cached, in the order of names.
// What serves there is near as well: its bytes may stand in the store under another
// source, or be a folder that is used in place, of which no store knows.
func (s Sources) CachedModels(cached []functions.CachedModel, serving []string) []NodeModel {
	tiers := map[string]functions.Tier{}
	for _, m := range serving {
		tiers[m] = functions.TierNVMe
	}
	for _, c := range cached {
		at, _, _ := strings.Cut(c.Source, "\n") // what follows are patterns of files that come with it
		for _, m := range s[at] {
			switch {
			case c.Tier == functions.TierDRAM:
				tiers[m] = functions.TierDRAM
			case tiers[m] == "":
				tiers[m] = functions.TierNVMe
			}
		}
	}
	return functions.ConvertAll(slices.Sorted(maps.Keys(tiers)), func(m string) NodeModel { return NodeModel{m, tiers[m]} })
}

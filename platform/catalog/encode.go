package catalog

import (
	"encoding/json"

	"github.com/goccy/go-yaml"
)

// EncodeYAML writes v as YAML, with the keys and the order its JSON has.
func EncodeYAML(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(b)
}

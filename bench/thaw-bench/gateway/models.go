package gateway

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// Functions of the benchmark. Model files are YAML, which includes JSON.
const (
	warmModel = "fake" // up at once
	heldModel = "held" // up once its file exists
)

// heldTarget is the number of concurrent requests of the held model's engine. The
// requests queued for one wake use this many connections, and then reuse them, as with a
// real engine.
const heldTarget = 64

// model returns a model file for the fake engine, with limits so high that no limit of
// the platform is measured.
func model(name string, target int, argv ...string) map[string]any {
	return map[string]any{
		"apiVersion": "thaw.dev/v1", "kind": "Model", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"engine": "command", "args": argv,
			"scale":     map[string]any{"max": 1, "target": target, "idle": "1h"},
			"queue":     map[string]any{"requests": 50000, "bytes": "1Gi", "wait": "10m"},
			"deadlines": map[string]any{"start": "20m", "firstToken": "2m", "hang": "1m", "drain": "5s"},
			"resources": map[string]any{"memory": "64Mi"},
		},
	}
}

// writeModels writes the model files. The held model's engine reports that it is loading
// until readyFile exists.
func writeModels(dir, self, readyFile string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	argv := []string{self, "engine", "--addr", "127.0.0.1:{port}"}
	for _, m := range []map[string]any{
		model(warmModel, 20000, argv...),
		model(heldModel, heldTarget, append(argv, "--ready-file", readyFile)...),
	} {
		b, err := json.MarshalIndent(m, "", "  ")
		if err != nil {
			return err
		}
		name := m["metadata"].(map[string]any)["name"].(string)
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

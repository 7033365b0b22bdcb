package cli

import (
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// ReadModels decodes the models of files and folders. All problems of all files
// are reported at once; a team among them is refused, as is an empty list.
func ReadModels(paths []string) ([]*functions.Model, error) {
	docs, err := readFiles(paths)
	if err != nil {
		return nil, err
	}
	var models []*functions.Model
	for _, d := range docs {
		if d.Team != nil {
			return nil, kit.Usage("a team is a namespace there; its GPUs are the namespace's ResourceQuota", "%s:%d: a team cannot be deployed", d.File, d.Line)
		}
		models = append(models, d.Model)
	}
	if len(models) == 0 {
		return nil, kit.Usage("", "there is no model in %s", paths)
	}
	return models, nil
}

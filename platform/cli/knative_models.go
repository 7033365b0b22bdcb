package cli

import (
	"context"
	"io"
	"os"

	"github.com/thaw-dev/thaw/functions"
)

// What the second program, thaw-knative, has in common with this one: it reads
// the same files and speaks the same way.

// ReadModels decodes the models of files and folders. All problems of all files
// are told at once; a team among them is refused, as is an empty list.
func ReadModels(paths []string) ([]*functions.Model, error) {
	docs, err := readFiles(paths)
	if err != nil {
		return nil, err
	}
	var models []*functions.Model
	for _, d := range docs {
		if d.Team != nil {
			return nil, Usage("a team is a namespace there; its GPUs are the namespace's ResourceQuota", "%s:%d: a team cannot be deployed", d.File, d.Line)
		}
		models = append(models, d.Model)
	}
	if len(models) == 0 {
		return nil, Usage("", "there is no model in %s", paths)
	}
	return models, nil
}

// Encode prints v as -o json or yaml.
func Encode(w io.Writer, form string, v any) error {
	c := &command{Terminal: &Terminal{Out: w}, output: form}
	return c.Encode(v)
}

// Report prints err, if there is one, and says the exit code it deserves.
func Report(ctx context.Context, stderr io.Writer, err error) int {
	return NewTerminal(nil, io.Discard, stderr, os.Getenv).Report(ctx, err)
}

package main

import (
	"testing"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/console"
)

// TestConsoleTakesNoBody: a body for a path of the console that comes after its head is
// answered by the console, as one that comes with it.
func TestConsoleTakesNoBody(t *testing.T) {
	pages := console.New(cli.Version).Serve
	authorize := authorizeBy(nil, nil, pages, nil)
	for _, method := range []string{"POST", "PUT"} {
		for _, path := range []string{"/ui", "/ui/", "/ui/models"} {
			var late, whole httpserver.Response
			req := &httpserver.Request{Method: method, Path: path}
			if key, ok := authorize(req, &late); ok || key != "" {
				t.Errorf("%s %s: its body is read", method, path)
			}
			pages(req, &whole)
			if late.Status != whole.Status || string(late.Body) != string(whole.Body) || late.Status != 405 {
				t.Errorf("%s %s: %d %s, and with its body %d %s", method, path, late.Status, late.Body, whole.Status, whole.Body)
			}
		}
	}
}

package main

import (
	"context"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative"
)

// controllerVerbs lists the verbs that thaw's own code runs, with the controller as the server,
// through the API server. Without --key the key is thaw's token, which the kubeconfig
// must be allowed to read.
var controllerVerbs = map[string]string{
	"describe": "Everything about one model, or about one team: describe team NAME",
	"events":   "What happened, of one model or of all, and why",
	"explain":  "Where the time of a cold start went, and why a model is where it is",
	"logs":     "Print the log of a model's engine",
	"models":   "List all models, cold ones too",
	"ps":       "List replicas, and models with queued requests",
	"stop":     "Drain a model's replicas; the next request starts it again",
	"wake":     "Start a model ahead of requests",
}

// isControllerVerb reports whether the controller answers the verb: of get, where a kind
// is named. Without one get lists models as Kubernetes has them.
func isControllerVerb(word string, args []string) bool {
	if word == "get" {
		kind := firstWord(args)
		return slices.Contains(cli.Kinds(), kind) || slices.Contains(cli.Kinds(), kind+"s")
	}
	return controllerVerbs[word] != ""
}

// firstWord is the first of args that is neither a flag nor the value of one; "": none.
func firstWord(args []string) string {
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-n", "--namespace", "--kubeconfig", "--context", "-o", "--output", "--timeout", "--key":
			i++
			continue
		}
		if !strings.HasPrefix(args[i], "-") {
			return args[i]
		}
	}
	return ""
}

// ask runs a verb of thaw with the controller for its server.
func (c *command) ask(ctx context.Context, args []string) error {
	exit := cli.Main(ctx, args, strings.NewReader(""), c.Out, c.Err, cli.Programs{
		Getenv: c.getenv,
		Client: func(flags cli.ClusterFlags, key string) (*api.Client, error) {
			return connectController(ctx, flags, key)
		},
	})
	if exit != 0 {
		return &kit.Error{Exit: exit} // it has printed the cause
	}
	return nil
}

func connectController(ctx context.Context, flags cli.ClusterFlags, key string) (*api.Client, error) {
	cluster, err := knative.Open(knative.Access{Kubeconfig: flags.Kubeconfig, Context: flags.Context})
	if err != nil {
		return nil, err
	}
	transport, err := cluster.Controller()
	if err != nil {
		return nil, err
	}
	if key == "" {
		if key, err = cluster.Admin(ctx); err != nil {
			return nil, err
		}
	}
	return api.NewClientOver(transport, "http://thaw-controller."+knative.System, key)
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/install"
	"github.com/thaw-dev/thaw/platform/knative/team"
)

func keysVerb() verb {
	return verb{"keys create|list|rm", "Create, list and revoke API keys of teams", `  thaw-knative keys create --team ml --name laptop     printed this once; the cluster has its hash
  thaw-knative keys list
  thaw-knative keys rm 0f3a9c --team ml`, func(c *command, f *kit.FlagSet) {
		f.StringVar(&c.team, "team", "", "the team, which is a namespace")
		f.StringVar(&c.keyName, "name", "", "with create: label for lists")
	}, (*command).keys, nil}
}

func (c *command) keys(ctx context.Context, args []string) error {
	word := ""
	if len(args) > 0 {
		word, args = args[0], args[1:]
	}
	switch {
	case !slices.Contains([]string{"create", "list", "ls", "rm"}, word):
		return kit.Usage("keys create, keys list or keys rm", "%q is nothing that is done with keys", kit.Plain(word))
	case word == "rm" && len(args) == 0:
		return kit.Usage("thaw-knative keys rm ID", "ID is missing")
	case word != "rm" && len(args) > 0:
		return kit.Usage("", "%q is more than keys %s takes", kit.Plain(args[0]), word)
	case c.keyName != "" && word != "create":
		return kit.Usage("leave it out", "--name is for keys create")
	}
	c.team = cmp.Or(c.team, c.namespace)
	if word == "create" && c.team == "" {
		return kit.Usage("thaw-knative keys create --team NAME", "--team is missing")
	}
	if c.team != "" && !functions.IsLabel(c.team) {
		return kit.Usage("the name of a namespace", "%q is no team", kit.Plain(c.team))
	}
	cluster, err := knative.Open(c.access)
	if err != nil {
		return err
	}
	switch word {
	case "create":
		secret, k, err := cluster.CreateKey(ctx, c.team, c.keyName)
		if err != nil {
			return err
		}
		return kit.PrintKey(c.Terminal, k.ID, k.Team, secret, struct {
			team.Key
			Secret string `json:"secret"`
		}{k, secret})
	case "rm":
		for _, id := range args {
			if err := cluster.DeleteKey(ctx, c.team, id); err != nil {
				return err
			}
			fmt.Fprintln(c.Out, kit.Plain(id), "ended")
		}
		return nil
	}
	keys, problems, err := cluster.Keys(ctx, c.team)
	if err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(c.Err, "warning:", kit.Plain(p))
	}
	if len(keys) == 0 && c.Output == "table" {
		fmt.Fprintln(c.Err, "no keys")
		return nil
	}
	return kit.PrintList(c.Terminal, keyKind, keys)
}

var keyKind = kit.Kind[team.Key]{Word: "Key", Columns: []kit.Column[team.Key]{
	kit.Col("ID", func(k team.Key) string { return k.ID }),
	kit.Col("TEAM", func(k team.Key) string { return k.Team }),
	kit.Col("NAME", func(k team.Key) string { return k.Name }),
	kit.Col("CREATED", func(k team.Key) string { return k.Created }),
}, Name: func(k team.Key) string { return k.ID }}

func teamVerb() verb {
	return verb{"team create NAME", "Set up a namespace for a team: GPUs, limits, rights, network policy", `  thaw-knative team create ml --gpus 4 --group oidc:ml --limit requests-per-minute=600
  thaw-knative team create ml --gpus 4 --pod gpu-nodes.yaml    tolerations and the like of the GPU nodes, for all its models
  thaw-knative team create ml --gpus 4 --dry-run -o yaml
  thaw-knative describe team ml`, func(c *command, f *kit.FlagSet) {
		var limits []string
		for _, l := range team.Limits {
			if l.Key != "gpus-guaranteed" {
				limits = append(limits, l.Key+" ("+l.What+")")
			}
		}
		t := &c.newTeam
		f.IntVar(&t.Spec.GPUs.Max, "gpus", 0, "GPUs it may hold at most, as a ResourceQuota; 0 is no limit")
		f.IntVar(&t.Spec.GPUs.Guaranteed, "guaranteed", 0, "GPUs it is guaranteed")
		f.IntVar(&t.settings.Services, "services", team.DefaultServices,
			"models (Knative Services) it may have at most, as a ResourceQuota; 0 is no limit")
		f.StringArrayVar(&t.limits, "limit", nil, "LIMIT=VALUE; may be repeated: "+strings.Join(limits, ", "))
		f.StringVar(&c.render.Pod, "pod", "",
			"file with what pods of its models with GPUs say where spec.pod does not (nodeSelector, tolerations, …), as the annotation "+
				team.PodAnnotation)
		f.StringArrayVar(&t.settings.Groups, "group", nil, "group that is the team, as the API server knows it; may be repeated")
		f.StringArrayVar(&t.settings.Users, "user", nil, "the same of a user")
		f.BoolVar(&t.open, "knative-activator", false,
			"let Knative's own activator reach its engines: every client in the cluster that reaches it then calls them without a key")
		f.BoolVar(&c.dry, "dry-run", false, dryRunHelp)
	}, (*command).createTeam, nil}
}

// teamSettings are the flags of team create alone.
type teamSettings struct {
	functions.Team
	settings team.Settings
	limits   []string
	open     bool
}

func (c *command) createTeam(ctx context.Context, args []string) error {
	if len(args) != 2 || args[0] != "create" {
		return kit.Usage("thaw-knative team create NAME; describe team NAME shows one", "create and a name are what it takes")
	}
	if c.namespace != "" {
		return kit.Usage("leave it out", "the namespace is the team itself")
	}
	t, s := &c.newTeam.Team, &c.newTeam.settings
	t.APIVersion, t.Kind, t.Metadata.Name = functions.APIVersion, functions.KindTeam, args[1]
	for _, word := range c.newTeam.limits {
		key, value, _ := strings.Cut(word, "=")
		if err := team.SetLimit(t, key, value); err != nil {
			return &kit.Error{Exit: kit.ExitUsage, Err: err, Hint: "such as --limit requests-per-minute=600"}
		}
	}
	s.System = install.Namespace
	if c.render.Pod != "" {
		pod, err := c.readPod()
		if err != nil {
			return err
		}
		text, err := json.Marshal(pod)
		if err != nil {
			return err
		}
		s.Pod = string(text)
	}
	if c.newTeam.open {
		s.Knative = "knative-serving"
	}
	objects, err := team.Render(t, *s)
	if err != nil {
		return &kit.Error{Exit: kit.ExitUsage, Err: err}
	}
	text, err := knative.ObjectsYAML(objects...)
	if err != nil {
		return err
	}
	docs, err := install.Decode(text)
	if err != nil {
		return err
	}
	if c.dry && c.isDocument() {
		return printObjects(c, docs)
	}
	return c.apply(ctx, docs, false)
}

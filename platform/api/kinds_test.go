package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

const (
	cloudFile = "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: cloud, namespace: a}\nspec: {url: \"https://api.example.com/v1\", " +
		"keyFrom: {env: CLOUD_KEY}}\n"
	autoFile = "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: auto, namespace: a}\nspec: {rules: [{name: all, to: [one, cloud, " +
		"gone]}]}\n"
	panelFile = "apiVersion: thaw.dev/v1\nkind: Composition\nmetadata: {name: panel, namespace: a}\nspec: {pattern: ensemble, members: " +
		"[one, cloud], coordinator: one, quorum: 1}\n"
)

// TestRoutersAndRemotes: they are deployed, listed, shown and removed as models are.
func TestRoutersAndRemotes(t *testing.T) {
	open := true
	r := start(t, func(o *Options) {
		o.Functions.RemoteState = func(n functions.Name) (functions.State, string) {
			if n.String() == "a/cloud" && !open {
				return functions.Failed, "it answers nothing"
			}
			return functions.Ready, ""
		}
	})
	r.keys(t)
	put := func(name, text, query string) (int, DeployReply, string) {
		t.Helper()
		status, _, body := r.ask(t, "PUT", "/api/v1/functions/a/"+name+query, r.admin, text)
		var d DeployReply
		if status < 300 {
			if err := json.Unmarshal([]byte(body), &d); err != nil {
				t.Fatal(err)
			}
		}
		return status, d, body
	}
	if status, d, body := put("cloud", cloudFile, "?dryRun"); status != 200 || !d.Created || !d.DryRun || d.Remote == nil ||
		len(r.cat.Remotes()) != 0 {
		t.Errorf("%d %s", status, body)
	}
	if status, d, body := put("cloud", cloudFile, ""); status != 201 || d.Kind != "Remote" || d.Remote.Allow != functions.DataPublic ||
		d.Spec != nil {
		t.Errorf("%d %s", status, body)
	}
	for _, query := range []string{"", "?dryRun", "?dryRun&beside=a/other"} {
		if status, _, body := put("auto", autoFile, query); status != 400 ||
			!strings.Contains(body, "there is no function a/gone (deploy it before, or together with this") {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
	for _, query := range []string{"?beside=a/gone", "?dryRun&beside=gone", "?dryRun&beside=A"} {
		if status, _, body := put("auto", autoFile, query); status != 400 || !strings.Contains(body, `"param":"beside"`) {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
	if status, d, body := put("auto", autoFile, "?dryRun&beside=a/other,a/gone"); status != 200 || !d.Created || len(d.Warnings) != 1 {
		t.Errorf("%d %s", status, body)
	}
	status, d, body := put("auto", strings.Replace(autoFile, ", gone", "", 1), "")
	if status != 201 || d.Kind != "Router" || d.State != functions.Ready || len(d.Router.Rules) != 1 || len(d.Warnings) != 1 {
		t.Fatalf("%d %s", status, body)
	}
	if w := d.Warnings[0]; !w.Warning ||
		!strings.Contains(w.Error(), "data: public on the Router or its team, or allow: internal on the Remote") {
		t.Error(w)
	}
	if status, _, body := put("auto", strings.Replace(autoFile, "gone", "auto", 1), ""); status != 400 || !strings.Contains(body, "a Router is no target") || !strings.Contains(body, `"param":"spec.rules[0].to[2]"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := put("cloud", strings.Replace(autoFile, "{name: auto", "{name: cloud", 1), ""); status == 200 {
		t.Errorf("a Router in place of a Remote: %s", body)
	}
	if status, _, body := put("one", strings.Replace(cloudFile, "name: cloud", "name: one", 1), ""); status != 409 ||
		!strings.Contains(body, "one.yaml:1") {
		t.Errorf("the name of a model: %d %s", status, body)
	}

	status, d, body = put("panel", panelFile, "")
	if status != 201 || d.Kind != "Composition" || d.State != functions.Ready || len(d.Composition.Members.List) != 2 ||
		d.Composition.Budget.Calls != 24 || len(d.Warnings) != 1 || !strings.Contains(d.Warnings[0].Error(), "cloud is never asked") {
		t.Fatalf("%d %s", status, body)
	}

	open = false
	c := client(t, r, r.keyA)
	list, err := c.Functions(t.Context())
	if err != nil || len(list) != 4 {
		t.Fatal(list, err)
	}
	if f := list[0]; f.Name != "a/auto" || f.Kind != "Router" || f.State != functions.Ready || f.Origin == "" {
		t.Errorf("%+v", f)
	}
	if f := list[1]; f.Name != "a/cloud" || f.Kind != "Remote" || f.State != functions.Failed || f.Problem != "it answers nothing" ||
		f.Source != "https://api.example.com/v1" {
		t.Errorf("%+v", f)
	}
	if f, err := c.Function(t.Context(), functions.Name{Team: "a", Name: "panel"}); err != nil || f.Kind != "Composition" ||
		f.State != functions.Ready || f.Composition.Coordinator != "one" || len(f.Composition.Members.List) != 2 {
		t.Errorf("%+v %v", f, err)
	}
	teams, err := GetItems[Team](t.Context(), c, "/api/v1/teams")
	if err != nil || teams[0].Functions != 4 {
		t.Error(teams, err)
	}
	// Where the key is read only admins see; another team sees nothing.
	for key, want := range map[string]string{r.keyA: "", r.admin: "CLOUD_KEY"} {
		f, err := client(t, r, key).Function(t.Context(), functions.Name{Team: "a", Name: "cloud"})
		if err != nil || f.Remote == nil || f.Remote.KeyFrom.Env != want {
			t.Errorf("%+v %v", f, err)
		}
	}
	for _, name := range []string{"auto", "cloud", "panel"} {
		if status, _, body := r.ask(t, "GET", "/api/v1/functions/a/"+name, r.keyB, ""); status != 404 || strings.Contains(body, "Did you mean") {
			t.Errorf("%d %s", status, body)
		}
		for _, verb := range []string{"wake", "stop"} {
			if status, _, body := r.ask(t, "POST", "/api/v1/functions/a/"+name+"/"+verb, r.admin, ""); status != 400 ||
				!strings.Contains(body, "it has no replicas that start and stop") {
				t.Errorf("%s %s: %d %s", verb, name, status, body)
			}
		}
		if status, _, body := r.ask(t, "DELETE", "/api/v1/functions/a/"+name, r.admin, ""); status != 204 {
			t.Errorf("%d %s", status, body)
		}
	}
	if len(r.cat.Routers())+len(r.cat.Remotes())+len(r.cat.Compositions()) != 0 {
		t.Error("they are still there")
	}
}

// TestWrongAddresses: an address with a path, and one of another server, are told as such.
func TestWrongAddresses(t *testing.T) {
	r := start(t, nil)
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	for server, want := range map[string]string{
		r.url + "/api": "The path /api stands in the server's address, where the verbs want none: " + r.url + ".",
		other.URL:      other.URL + " answered 404 Not Found, and not as thaw does: is it the address of a thaw server?",
	} {
		c, err := NewClient(server, "")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Functions(t.Context()); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", server, err)
		}
	}
	c, err := NewClient(r.url+"/v1/", "") // as clients of the OpenAI API name a server
	if err != nil || c.Server() != r.url {
		t.Errorf("%v", err)
	}
	defer c.Close()
}

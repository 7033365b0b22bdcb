package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api/live"
)

// TestLists: one stream has several lists, a team's key its team's items alone.
func TestLists(t *testing.T) {
	r := start(t, nil)
	r.keys(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	follow := func(key string) (next func() string, end func()) {
		res, err := client(t, r, key).Do(ctx, http.MethodGet, "/api/v1/lists?watch&of=replicas,functions", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(res.Body)
		return func() string {
			for lines.Scan() {
				var l live.Line
				if len(lines.Bytes()) == 0 {
					continue
				}
				if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
					t.Fatal(err, lines.Text())
				}
				var item struct{ ID, Name, Function string }
				if l.Item != nil && json.Unmarshal(l.Item, &item) != nil {
					t.Fatalf("%s", l.Item)
				}
				return strings.Join(slices.DeleteFunc([]string{l.List, l.Event, item.ID, item.Name, l.Name}, func(s string) bool { return s == "" }), " ")
			}
			t.Fatal("the stream ended", lines.Err())
			return ""
		}, func() { res.Body.Close() }
	}
	all, endAll := follow(r.admin)
	defer endAll()
	mine, endMine := follow(r.keyA)
	defer endMine()
	until := func(next func() string, last string) (got []string) {
		for {
			got = append(got, next())
			if got[len(got)-1] == last {
				return got
			}
		}
	}
	seen, own := until(all, "replicas synced"), until(mine, "replicas synced")
	if seen[0] != "functions reset" || !slices.Contains(seen, "functions put a/one") || !slices.Contains(seen, "functions put b/two") ||
		!slices.Contains(seen, "functions synced") {
		t.Errorf("%q", seen)
	}
	if !slices.Contains(own, "functions put a/one") || slices.Contains(own, "functions put b/two") {
		t.Errorf("%q", own)
	}
	if _, err := r.cat.Put(functions.Name{Team: "z", Name: "z"}, []byte(modelFile("z", "z"))); err != nil {
		t.Fatal(err)
	}
	r.changed <- struct{}{}
	if got := all(); got != "functions put z/z" {
		t.Error(got)
	}

	if status, _, body := r.ask(t, "GET", "/api/v1/lists?of=functions,nodes", r.keyA, ""); status != 200 || !strings.HasPrefix(body, `{"functions":[{"name":"a/one"`) || !strings.Contains(body, `"nodes":[{"id":"here"`) || strings.Contains(body, "b/two") {
		t.Errorf("%d %s", status, body)
	}
	for _, q := range []string{"of=", "of=keys", "of=functions,functions", "of=functions,", "lists=nodes"} {
		for _, watch := range []string{"", "&watch"} {
			if status, _, body := r.ask(t, "GET", "/api/v1/lists?"+q+watch, r.admin, ""); status != 400 {
				t.Errorf("%q: %d %s", q, status, body)
			}
		}
	}
}

// TestSwitches: a switch is on, off or refused; no other word counts as true.
func TestSwitches(t *testing.T) {
	r := start(t, nil)
	for path, want := range map[string]int{
		"functions?watch=false": 200, "functions?watch=0": 200, "functions?watch=nonsense": 400, "functions?watch=TRUE": 400, "functions?watch=no": 400,
		"lists?of=nodes&watch=nonsense": 400, "replicas/x/logs?follow=maybe": 400, "events?watch=yes": 400, "teams?watch=+1": 400,
	} {
		res, err := client(t, r, "").Do(t.Context(), http.MethodGet, "/api/v1/"+path, nil, nil)
		var e *StatusError
		status := 200
		if errors.As(err, &e) {
			status = e.Status
		} else if err != nil {
			t.Fatal(err)
		} else {
			res.Body.Close()
		}
		if status != want || want == 400 && (!strings.Contains(e.Message, "want true or false") || e.Code != "invalid_value") {
			t.Errorf("%s: %d %v", path, status, err)
		}
	}
	if q, wrong := parseQuery("watch&dryRun=true&follow=1", []string{"watch", "dryRun", "follow"}); wrong != "" || q.badSwitch() != "" || !q.on("watch") || !q.on("dryRun") || !q.on("follow") {
		t.Errorf("%v", q)
	}
	if q, _ := parseQuery("dryRun=fals", []string{"dryRun"}); q.badSwitch() != "dryRun" || q.on("dryRun") {
		t.Errorf("%v", q)
	}
}

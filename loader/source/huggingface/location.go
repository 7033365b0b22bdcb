package huggingface

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/loader/source"
)

type repoLocation struct {
	org, repo string
	rev       string // main if the location names none
	sub       string // a folder or a file of weights below; mostly empty
}

func (l repoLocation) String() string {
	s := "hf://" + l.org + "/" + l.repo
	if l.rev != "main" {
		rev := l.rev
		if !strings.HasPrefix(rev, "refs/") {
			rev = strings.ReplaceAll(rev, "/", "%2F")
		}
		s += "@" + rev
	}
	if l.sub != "" {
		s += "/" + l.sub
	}
	return s
}

var (
	repoName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	revision = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/+-]*$`)
)

const maxName, maxRevision = 96, 200

func isCommit(s string) bool { return len(s) == 40 && strings.Trim(s, "0123456789abcdef") == "" }

// parse reads hf://ORG/REPO[@REV][/FOLDER].
func parse(location string) (repoLocation, error) {
	bad := func(problem string) (repoLocation, error) {
		return repoLocation{}, &source.Error{Kind: source.BadSource, Source: location, Detail: problem, Fix: "hf://ORG/REPO[@REV]"}
	}
	rest, ok := strings.CutPrefix(location, "hf://")
	if !ok {
		return bad("is not a repository of the hub")
	}
	if strings.ContainsAny(rest, "?#") {
		return repoLocation{},
			&source.Error{Kind: source.BadSource, Detail: "the source holds a query or a fragment", Fix: "leave it out; a token comes from HF_TOKEN"}
	}
	parts := strings.Split(strings.Trim(rest, "/"), "/")
	if len(parts) < 2 {
		return bad("names no repository")
	}
	p := repoLocation{org: parts[0], rev: "main"}
	var at bool
	p.repo, p.rev, at = strings.Cut(parts[1], "@")
	parts = parts[2:]
	p.rev = strings.ReplaceAll(p.rev, "%2F", "/") // of a branch
	if !at {
		p.rev = "main"
	} else if p.rev == "refs" && len(parts) >= 2 {
		p.rev += "/" + parts[0] + "/" + parts[1]
		parts = parts[2:]
	}
	p.sub = strings.Join(parts, "/")
	switch {
	case len(p.org) > maxName || len(p.repo) > maxName || !repoName.MatchString(p.org) || !repoName.MatchString(p.repo) ||
		strings.Contains(p.org+p.repo, ".."):
		return bad(fmt.Sprintf("%.80q is not the name of a repository", p.org+"/"+p.repo))
	case len(p.rev) > maxRevision || !revision.MatchString(p.rev) || strings.Contains(p.rev, "..") ||
		slices.ContainsFunc(strings.Split(p.rev, "/"), func(part string) bool { return part == "" || part == "." }):
		return bad(fmt.Sprintf("%.80q is not a revision", p.rev))
	}
	for _, part := range parts {
		if part == "" || part == "." || part == ".." ||
			strings.ContainsFunc(part, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' || r == '@' }) {
			return bad(fmt.Sprintf("%.80q is not a folder of a repository", p.sub))
		}
	}
	return p, nil
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/chatstream"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

// DefaultServer is where client verbs look for a server.
const DefaultServer = "http://127.0.0.1:8080"

// queryTimeout bounds a verb that only reads; --timeout overrides it.
const queryTimeout = 30 * time.Second

// client returns a client of the server.
func (c *connection) client() (*api.Client, error) {
	if c.programs.Client != nil {
		key, err := c.keys.given()
		if err != nil {
			return nil, err
		}
		return c.programs.Client(c.cluster, key)
	}
	if c.programs.Environ != nil && !c.warned {
		c.warned = true
		known := append(kit.Variables(new(ServeConfig)), moreVariables...)
		kit.UnknownVariables(c.programs.Environ(), known, func(name, meant string) {
			if meant == "THAW_SERVER" || meant == "THAW_KEY" { // other names may be of other programs
				c.Remark("%s is ignored; did you mean %s?", functions.Clip(name), meant)
			}
		})
	}
	server := cmp.Or(strings.TrimSpace(cmp.Or(c.server, c.programs.Getenv("THAW_SERVER"))), DefaultServer)
	key, err := c.keys.find(server)
	if err != nil {
		return nil, err
	}
	cl, err := api.NewClient(server, key)
	if err != nil {
		return nil, kit.Usage("--server URL or THAW_SERVER", "%v", err)
	}
	if c.keys.file != "" {
		cl.GuessKey()
	}
	return cl, nil
}

// keyFinder finds the key to send, and remembers where, for the hint when it is wrong.
type keyFinder struct {
	key, data string // --key and --data
	getenv    func(string) string
	named     string // the flag or variable that named it
	file      string // the admin token in a data folder: neither flag nor variable named a key
}

// given is the key of --key or THAW_KEY, without the line end that a file may have. The error
// has one character of it at most.
func (k *keyFinder) given() (string, error) {
	key, from := k.key, "--key"
	if key == "" {
		key, from = k.getenv("THAW_KEY"), "THAW_KEY"
	}
	if key = strings.TrimSpace(key); key != "" {
		k.named = from
	}
	for i, r := range []rune(key) {
		if r <= ' ' || r > '~' {
			return "", kit.Usage("copy it again: a key has ASCII letters, digits and signs alone, on one line",
				"the key of %s has %q (%U) as character %d, which no key has", from, r, r, i+1)
		}
	}
	return key, nil
}

// find is the key to send: --key, THAW_KEY, or on this machine the admin
// token in the data folder. Of data folders the one that was named counts;
// unnamed, ./data (where make run puts it) comes before the one at home.
func (k *keyFinder) find(server string) (string, error) {
	if key, err := k.given(); key != "" || err != nil {
		return key, err
	}
	if !isLocal(server) {
		return "", nil
	}
	dirs, _ := k.dataFolders() // without any there is no token to send
	for _, dir := range dirs {
		path := filepath.Join(dir, "admin-token")
		token, err := kit.ReadToken(path)
		switch {
		case err == nil:
			k.file = path
			return token, nil
		case errors.Is(err, os.ErrPermission):
			return "", &kit.Error{Exit: kit.ExitDenied, What: "the admin token cannot be read", Err: err,
				Hint: "run as the user of the server, or give --key"}
		}
	}
	return "", nil
}

// dataFolders are where the data of a server of this machine may be, the
// likeliest first.
func (k *keyFinder) dataFolders() ([]string, error) {
	if dir := cmp.Or(k.data, k.getenv("THAW_DATA")); dir != "" {
		return []string{dir}, nil
	}
	home, err := dataDir(k.getenv, "thaw")
	if err != nil {
		return []string{"data"}, err
	}
	return []string{"data", home}, nil
}

// isLocal reports whether server is on this machine: its admin token is sent nowhere else.
func isLocal(server string) bool {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	u, err := url.Parse(server)
	return err == nil && functions.IsLoopbackHost(u.Hostname())
}

// withHint adds an exit code and a hint to an error of the client.
func (c *connection) withHint(cl *api.Client, err error) error {
	if err == nil {
		return nil
	}
	if e, ours := errors.AsType[*kit.Error](err); ours {
		return e
	}
	if s, ok := errors.AsType[*api.StatusError](err); ok {
		e := &kit.Error{Exit: kit.ExitFailed, Err: err}
		switch s.Status {
		case 400, 413, 422:
			e.Exit = kit.ExitUsage
		case 404:
			e.Exit = kit.ExitNotFound
		case 401:
			e.Exit, e.Hint = kit.ExitDenied, "give --key KEY or THAW_KEY; on the server's machine --data DIR finds its admin token"
			if from := cmp.Or(c.keys.named, c.keys.file); from != "" {
				e.Hint = "the key came from " + from + "; is it of this server?"
			}
			if c.keys.file != "" {
				e.Hint += " --data DIR names the server's data folder, --key KEY a key"
			}
		case 403, 429:
			e.Exit = kit.ExitDenied
		case 408, 504:
			e.Exit = kit.ExitTimeout
		case 502, 503:
			e.Exit = kit.ExitUnavailable
		}
		if s.Code == "unknown_endpoint" {
			e.Hint = "is the server of another version than this program (thaw version)?"
		}
		if s.Code == "model_load_failed" {
			e.Exit, e.Hint = kit.ExitFailed, "thaw describe and thaw logs tell more"
		}
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var op *net.OpError
	if strings.Contains(err.Error(), "proxyconnect") {
		return &kit.Error{Exit: kit.ExitUnavailable, What: "the proxy on the way to " + cl.Server(), Err: unwrapURLError(err),
			Hint: "HTTP_PROXY or HTTPS_PROXY names it; NO_PROXY=HOST leads around it"}
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &op) && op.Op == "dial" {
		return &kit.Error{Exit: kit.ExitUnavailable, What: "no server at " + cl.Server(), Err: unwrapURLError(err),
			Hint: "start one with thaw serve, or name it with --server URL"}
	}
	if _, file := errors.AsType[*fs.PathError](err); file {
		return err
	}
	var network net.Error
	_, failed := errors.AsType[*url.Error](err)
	if failed || errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, chatstream.ErrCut) ||
		errors.Is(err, api.ErrLost) {
		e := &kit.Error{Exit: kit.ExitUnavailable, What: "the server at " + cl.Server() + " broke off", Err: unwrapURLError(err)}
		for _, h := range tlsHints {
			if strings.Contains(err.Error(), h.err) {
				e.Hint = h.hint
				break
			}
		}
		return e
	}
	return err
}

// tlsHints are the ways out of errors of TLS, by a part of their text.
var tlsHints = []struct{ err, hint string }{
	{"HTTP response to HTTPS client", "it answers without TLS: http:// in --server"},
	{"unknown authority", "SSL_CERT_FILE=FILE names the certificates of the authority that signed the server's"},
	{"has expired or is not yet valid", "renew the server's certificate, or set this machine's clock"},
	{"x509: ", "--server names a host that stands in the server's certificate"},
}

// unwrapURLError leaves out the method and the URL that net/http writes before a cause.
func unwrapURLError(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// verbBody is cobra's RunE.
type verbBody = func(cmd *cobra.Command, args []string) error

// remote makes the body of a verb that calls the server. bound is its time limit,
// which --timeout overrides; 0 is none.
func (c *connection) remote(bound time.Duration, do func(ctx context.Context, cl *api.Client, args []string) error) verbBody {
	return func(cmd *cobra.Command, args []string) error {
		cl, err := c.client()
		if err != nil {
			return err
		}
		defer cl.Close()
		ctx := cmd.Context()
		if c.timeout > 0 {
			bound = c.timeout
		}
		if bound > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, bound)
			defer cancel()
		}
		err = do(ctx, cl, args)
		if err != nil && ctx.Err() != nil {
			// The deadline or an interrupt caused whatever error came back.
			err = ctx.Err()
			if errors.Is(err, context.DeadlineExceeded) {
				return &kit.Error{Exit: kit.ExitTimeout, What: fmt.Sprintf("not done within %s", bound), Hint: "give it longer with --timeout"}
			}
		}
		return c.withHint(cl, err)
	}
}

// named makes the body of a verb that calls the server with each function that its arguments name.
func (c *connection) named(bound time.Duration, do func(ctx context.Context, cl *api.Client, name functions.Name) error) verbBody {
	return c.remote(bound, func(ctx context.Context, cl *api.Client, args []string) error {
		for _, word := range args {
			name, err := c.name(ctx, cl, word)
			if err == nil {
				err = do(ctx, cl, name)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// name reads NAME or TEAM/NAME as a person means it: without a team, the only
// function of that name that the key sees, the default team's before others.
func (c *connection) name(ctx context.Context, cl *api.Client, word string) (functions.Name, error) {
	if message, hint := functions.CheckSource(word); strings.HasPrefix(hint, "did you mean ") {
		return functions.Name{}, kit.Usage(hint, "%s", message)
	}
	n, err := functions.ParseName(word, functions.DefaultTeam)
	if err != nil {
		hint := "NAME or TEAM/NAME; a repository of Hugging Face is hf://"
		if strings.Count(word, "/") == 1 {
			hint += functions.Clip(word)
		} else {
			hint += "ORG/REPO"
		}
		return n, kit.Usage(hint, "%v", err)
	}
	if strings.Contains(word, "/") {
		return n, nil
	}
	all, err := cl.Functions(ctx)
	if err != nil {
		return n, err
	}
	var teams, names []string
	for _, f := range all {
		if !c.cluster.shows(f.Team) {
			continue
		}
		names = append(names, f.Model)
		if f.Model == n.Name {
			teams = append(teams, f.Team)
		}
	}
	switch {
	case slices.Contains(teams, functions.DefaultTeam):
	case len(teams) == 1:
		n.Team = teams[0]
	case len(teams) > 1:
		return n, kit.Usage("write "+teams[0]+"/"+n.Name, "%s is a function of more than one team: %s", n.Name, strings.Join(teams, ", "))
	default:
		what := "there is no function " + n.Short()
		if c.cluster.Namespace != "" {
			what += " of team " + c.cluster.Namespace
		}
		return n, &kit.Error{Exit: kit.ExitNotFound, What: what, Hint: kit.DidYouMean(n.Name, names, 3, "thaw models lists them")}
	}
	return n, nil
}

// completeNames offers the functions of the server, if it answers at once.
func (c *connection) completeNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var all []api.Function
	if cl, err := c.client(); err == nil && len(args) == 0 {
		defer cl.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		all, _ = cl.Functions(ctx) // without an answer none is offered
	}
	names := functions.ConvertAll(all, func(f api.Function) string { return tables.ShortName(f.Name) })
	return names, cobra.ShellCompDirectiveNoFileComp
}

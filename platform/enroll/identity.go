package enroll

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// Files of an identity beside those of a mtls.Folder.
const (
	tokenFile = "joined-with" // digest of the join token
)

const (
	joinFirst  = 100 * time.Millisecond
	joinLast   = 5 * time.Second
	joinWithin = 10 * time.Second // one try
	renewEvery = time.Hour
)

// ErrRefused means that the server refuses the agent: trying again will not help.
var ErrRefused = errors.New("the server refuses this agent")

// ErrNoToken means that an agent without an identity has no join token.
var ErrNoToken = errors.New("this agent has not joined yet, and there is no join token")

// JoinOptions say which server an agent joins, and as which agent.
type JoinOptions struct {
	Server string // https://HOST:PORT
	Token  string // "" where it has joined already
	ID     string
	Dir    string // where the identity is kept
	Log    *slog.Logger
}

// Identity is what an agent and its server know each other by, in a folder.
type Identity struct {
	o       JoinOptions
	folder  *mtls.Folder
	removed atomic.Pointer[map[string]bool] // digests of keys of removed agents
}

// Join returns the agent's identity: the one in its folder, or with another token than that
// one was made with, a new one of the server. Where the server refuses such a token, and
// still knows the identity in the folder, that one is kept: a file with a used token may lie
// beside it. It tries until the server answers or ctx ends.
func Join(ctx context.Context, o JoinOptions) (*Identity, error) {
	o.Server = strings.TrimRight(o.Server, "/")
	has, sameToken, err := openIdentity(o)
	if err != nil || has != nil && sameToken {
		return has, err
	}
	if o.Token == "" {
		return nil, ErrNoToken
	}
	_, fingerprint, ok := strings.Cut(o.Token, ".")
	if !ok || !strings.HasPrefix(o.Token, TokenPrefix) || len(fingerprint) != 2*sha256.Size {
		return nil, fmt.Errorf("%w: the token is none that thaw agents token made", ErrRefused)
	}
	key, request, err := certificateRequest(o)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: mtls.Pinned(fingerprint, ServerName), DisableKeepAlives: true},
		Timeout: joinWithin}
	retry, logged := backoff.Backoff{First: joinFirst, Max: joinLast}, ""
	for {
		reply, err := postJSON(ctx, client, o.Server+joinPath, joinRequest{Token: o.Token, ID: o.ID, Request: request})
		switch { // another try would find the same
		case errors.Is(err, http.ErrSchemeMismatch):
			err = fmt.Errorf("%w: %s speaks no TLS: it is the port of its API, not its --agents-addr", ErrRefused, o.Server)
		case errors.Is(err, mtls.ErrOtherServer):
			err = fmt.Errorf("%w: %w", ErrRefused, err)
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, ErrRefused):
			if has == nil || !has.isKnown(ctx) {
				return nil, err
			}
			o.Log.Warn("the join token is refused and ignored: this agent has joined before, and the server knows it", "server", o.Server, "agent",
				o.ID, "error", err)
			return has, nil
		case err == nil:
			if err := saveIdentity(o, key, reply); err != nil {
				return nil, err
			}
			o.Log.Info("this agent has joined", "server", o.Server, "agent", o.ID)
			has, _, err = openIdentity(o)
			return has, err
		}
		if logged != err.Error() {
			o.Log.Warn("the server cannot be joined yet", "server", o.Server, "error", err)
			logged = err.Error()
		}
		if !backoff.Sleep(ctx, retry.Next()) {
			return nil, ctx.Err()
		}
	}
}

// openIdentity reads the identity of the folder, and whether it was made with the token of
// the options or they have none; nil if there is none, or it is another agent's.
func openIdentity(o JoinOptions) (has *Identity, sameToken bool, err error) {
	folder, err := mtls.Open(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("the agent's identity: %w; remove %s and join again with a token that thaw agents token --name %s makes "+
			"on the server", err, o.Dir, o.ID)
	}
	id, err := folder.Identity()
	if err != nil {
		return nil, false, err
	}
	was, err := os.ReadFile(filepath.Join(o.Dir, tokenFile))
	if err != nil || id.Cert.Leaf.VerifyHostname(AgentName(o.ID)) != nil {
		return nil, false, nil
	}
	return &Identity{o: o, folder: folder}, o.Token == "" || string(was) == digest([]byte(o.Token)), nil
}

// isKnown reports whether the server takes the identity, by asking it for a renewal.
func (i *Identity) isKnown(ctx context.Context) bool {
	_, err := postJSON(ctx, i.client(), i.o.Server+renewPath, struct{}{})
	return err == nil
}

// client returns a client of the server with the agent's certificate.
func (i *Identity) client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: i.ServerTLS(), DisableKeepAlives: true}, Timeout: joinWithin}
}

// digest is the SHA-256 of a token or a public key, in hex.
func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// certificateRequest returns the agent's key, as PEM, and a request for its certificate. A
// key that is in the folder already is used again: the server knows the agent by it.
func certificateRequest(o JoinOptions) (secret, request []byte, err error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, nil, err
	}
	path := filepath.Join(o.Dir, mtls.KeyFile)
	var key *ecdsa.PrivateKey
	if secret, err = os.ReadFile(path); err == nil {
		if block, _ := pem.Decode(secret); block != nil {
			if parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
				key, _ = parsed.(*ecdsa.PrivateKey)
			}
		}
	}
	if key == nil {
		if key, secret, err = mtls.NewKey(); err != nil {
			return nil, nil, err
		}
		if err := durable.WriteFile(path, secret, 0o600); err != nil {
			return nil, nil, err
		}
	}
	request, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return secret, request, err
}

// saveIdentity keeps an identity, after a check that it is one.
func saveIdentity(o JoinOptions, key []byte, r joinReply) error {
	if _, err := mtls.Read([]byte(r.Authority), mtls.Leaf{Cert: []byte(r.Certificate), Key: key}); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	for _, f := range []struct{ name, text string }{
		{mtls.RootFile, r.Authority}, {mtls.CertFile, r.Certificate}, {tokenFile, digest([]byte(o.Token))},
	} {
		if err := durable.WriteFile(filepath.Join(o.Dir, f.name), []byte(f.text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// postJSON sends JSON and reads the reply. A refusal that does not change by itself is an
// ErrRefused.
func postJSON(ctx context.Context, client *http.Client, url string, in any) (reply joinReply, err error) {
	b, err := json.Marshal(in)
	if err != nil {
		return reply, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		return reply, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return reply, mtls.Explain(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return reply, err
	}
	if res.StatusCode == http.StatusOK {
		return reply, json.Unmarshal(text, &reply)
	}
	var problem struct{ Error struct{ Message string } }
	_ = json.Unmarshal(text, &problem)
	err = fmt.Errorf("%s: %s", res.Status, problem.Error.Message)
	if res.StatusCode < 500 {
		err = fmt.Errorf("%w: %s", ErrRefused, cmp.Or(problem.Error.Message, "it answers "+res.Status))
	}
	return reply, err
}

// ServerTLS is the configuration of connections to the server.
func (i *Identity) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, ServerName: ServerName,
		RootCAs: i.roots(),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			id, err := i.folder.Identity()
			if err != nil {
				return nil, err
			}
			return &id.Cert, nil
		},
	}
}

// roots are the authority of the server, which does not change while this process lives.
func (i *Identity) roots() *x509.CertPool {
	id, err := i.folder.Identity()
	if err != nil {
		return x509.NewCertPool() // no server is trusted
	}
	return id.Roots
}

// AgentTLS is the configuration of the agent's own port, which takes its server alone.
func (i *Identity) AgentTLS() *tls.Config {
	return mtls.Server(i.folder.Identity, ServerName)
}

// Run renews the certificate when half of its lifetime is over, until ctx ends.
func (i *Identity) Run(ctx context.Context) error {
	client := i.client()
	for backoff.Sleep(ctx, renewEvery) {
		if err := i.renew(ctx, client, time.Now()); err != nil && ctx.Err() == nil {
			i.o.Log.Warn("the agent's certificate cannot be renewed", "error", err)
		}
	}
	return nil
}

func (i *Identity) renew(ctx context.Context, client *http.Client, now time.Time) error {
	cert, err := os.ReadFile(filepath.Join(i.o.Dir, mtls.CertFile))
	if err != nil || !mtls.Old(cert, now) {
		return err
	}
	reply, err := postJSON(ctx, client, i.o.Server+renewPath, struct{}{})
	if err != nil {
		return err
	}
	key, err := os.ReadFile(filepath.Join(i.o.Dir, mtls.KeyFile))
	if err != nil {
		return err
	}
	if _, err := mtls.Read([]byte(reply.Authority), mtls.Leaf{Cert: []byte(reply.Certificate), Key: key}); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	return durable.WriteFile(filepath.Join(i.o.Dir, mtls.CertFile), []byte(reply.Certificate), 0o600)
}

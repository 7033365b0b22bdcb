package httpsource

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source"
)

// NoAnswer describes why a request had no answer, by the error's type: its text may hold the
// URL. A mistake that another try does not mend is of kind Refused. Source and file are the
// caller's.
func NoAnswer(err error) *source.Error {
	if e, ok := errors.AsType[*source.Error](err); ok { // of this package
		return &source.Error{Kind: e.Kind, Detail: e.Detail, Fix: e.Fix}
	}
	host, fix := "", CheckNetwork
	if u, ok := errors.AsType[*url.Error](err); ok {
		if at, err := url.Parse(u.URL); err == nil {
			host = at.Host + ": "
		}
	}
	if o, ok := errors.AsType[*net.OpError](err); ok && (o.Op == "proxyconnect" || strings.HasPrefix(o.Op, "socks")) {
		host, fix = "the proxy: ", "check the proxy that HTTPS_PROXY names; NO_PROXY names hosts that are asked without it"
	}
	if d, fix := tlsMistake(err); d != "" {
		return source.Fail(source.Refused, host+d, fix)
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		host = "" // named by the cause
	}
	return source.Fail(source.Unavailable, host+cause(err), fix)
}

// CheckNetwork is the way out where a server gives no answer.
const CheckNetwork = "check the host's name and this machine's network"

// Late is the cause of a request whose answer did not come in time.
const Late = "no answer in time"

// checkConnect refuses what a proxy answers to CONNECT, but for 200.
func checkConnect(_ context.Context, proxy *url.URL, req *http.Request, r *http.Response) error {
	kind, fix := source.Refused, "let it through there; NO_PROXY names hosts that are asked without the proxy"
	switch {
	case r.StatusCode == http.StatusOK:
		return nil
	case r.StatusCode == http.StatusProxyAuthRequired:
		kind, fix = source.Denied, ProxyLogin(r.Header)
	case r.StatusCode >= 500:
		kind = source.Unavailable
	}
	words := CleanWords(r.Header.Get("X-Squid-Error"), nil)
	return source.Fail(kind, strings.TrimSuffix(fmt.Sprintf("the proxy %s answered %d for %s: %s", proxy.Host, r.StatusCode, req.Host, words),
		": "), fix)
}

// ProxyLogin is the way out where a proxy asks for a login, by the schemes that its answer names.
func ProxyLogin(h http.Header) string {
	var schemes []string
	for _, challenge := range h.Values("Proxy-Authenticate") {
		scheme, _, _ := strings.Cut(challenge, " ")
		if strings.EqualFold(scheme, "Basic") {
			schemes = nil
			break
		}
		schemes = append(schemes, functions.Clip(scheme))
	}
	if len(schemes) > 0 {
		return "the proxy asks for a login by " + strings.Join(schemes, " or ") + ", which is not spoken here: name a local proxy " +
			"in HTTPS_PROXY that logs in there, such as px or cntlm"
	}
	return "the proxy asks for a login: HTTPS_PROXY=http://NAME:PASSWORD@HOST:PORT"
}

// tlsMistake describes what is wrong with a certificate or a port, and its way out; "" where
// the error is another.
func tlsMistake(err error) (detail, fix string) {
	if errors.Is(err, http.ErrSchemeMismatch) {
		return "the port answers without TLS", "name its TLS port, or use http:// (for a trusted host: " + HostsVariable + ")"
	}
	if r, ok := errors.AsType[tls.RecordHeaderError](err); ok && r.Conn != nil {
		return "the port does not speak TLS", "name its TLS port, or use http:// (for a trusted host: " + HostsVariable + ")"
	}
	for _, alert := range []string{"tls: protocol version not supported", "tls: server selected unsupported protocol version",
		"tls: handshake failure", "tls: unrecognized name"} {
		if strings.Contains(err.Error(), alert) {
			return alert, "the server has to speak TLS 1.2 or newer with a common cipher, and to know that name"
		}
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		by := ""
		if v, ok := errors.AsType[*tls.CertificateVerificationError](err); ok && len(v.UnverifiedCertificates) > 0 {
			chain := v.UnverifiedCertificates
			by = fmt.Sprintf(" (%q)", functions.Clip(chain[len(chain)-1].Issuer.String()))
		}
		return "its certificate is from an authority that this machine does not know" + by,
			"add its CA to those of this machine, or name a file with it in SSL_CERT_FILE, and start thaw anew" + unreadableRoots()
	}
	if h, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Sprintf("its certificate is not for %q", functions.Clip(h.Host)), "use a name that is in the certificate"
	}
	if c, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if c.Reason == x509.Expired {
			return "its certificate has expired, or is not valid yet", "renew it, or set this machine's clock"
		}
		return "its certificate is not valid: " + c.Error(), "give the server one that is valid"
	}
	return "", ""
}

// caVariables name files with authorities beside the machine's, as other clients of the same
// servers know them. SSL_CERT_FILE and SSL_CERT_DIR are those of crypto/x509.
var caVariables = []string{"AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}

// Roots returns the machine's authorities and those of the files that caVariables name; nil,
// which is the machine's, without any.
func Roots() *x509.CertPool {
	var pool *x509.CertPool
	for _, name := range caVariables {
		pem, err := os.ReadFile(os.Getenv(name))
		if err != nil {
			continue // told with the mistake, if there is one
		}
		if pool == nil {
			if pool, err = x509.SystemCertPool(); err != nil {
				pool = x509.NewCertPool()
			}
		}
		pool.AppendCertsFromPEM(pem)
	}
	return pool
}

// unreadableRoots names the variables whose files give no authority.
func unreadableRoots() (out string) {
	for _, name := range append([]string{"SSL_CERT_FILE"}, caVariables...) {
		file := os.Getenv(name)
		pem, err := os.ReadFile(file)
		switch {
		case file == "":
		case err != nil:
			out += fmt.Sprintf("; %s names %q: %v", name, functions.Clip(file), errors.Unwrap(err))
		case !x509.NewCertPool().AppendCertsFromPEM(pem):
			out += fmt.Sprintf("; %s names %q, which holds no certificate in PEM", name, functions.Clip(file))
		}
	}
	return out
}

// cause describes in a few words why there was no answer.
func cause(err error) string {
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		if d.IsNotFound {
			return "DNS knows no " + d.Name
		}
		return "DNS gives no answer for " + d.Name
	}
	if o, ok := errors.AsType[*net.OpError](err); ok && o.Err != nil {
		return o.Op + ": " + o.Err.Error()
	}
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		return Late
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the connection was closed"
	}
	if strings.Contains(err.Error(), "certificate") {
		return "its certificate is not trusted here"
	}
	return "the connection failed"
}

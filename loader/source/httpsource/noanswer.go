package httpsource

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source"
)

// NoAnswer describes why a request had no answer, by the error's type: its text may hold the
// URL. A mistake that another try does not mend is of kind Refused. Source and file are the
// caller's.
func NoAnswer(err error) *source.Error {
	e := &source.Error{Kind: source.Refused}
	if d, fix := tlsMistake(err); d != "" {
		e.Detail, e.Fix = d, fix
		return e
	}
	fix := "check the host's name and this machine's network"
	if o, ok := errors.AsType[*net.OpError](err); ok && o.Op == "proxyconnect" {
		fix = "check the proxy that HTTPS_PROXY names; NO_PROXY names hosts that are asked without it"
	}
	return &source.Error{Kind: source.Unavailable, Detail: cause(err), Fix: fix}
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
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		by := ""
		if v, ok := errors.AsType[*tls.CertificateVerificationError](err); ok && len(v.UnverifiedCertificates) > 0 {
			chain := v.UnverifiedCertificates
			by = fmt.Sprintf(" (%q)", functions.Clip(chain[len(chain)-1].Issuer.String()))
		}
		return "its certificate is from an authority that this machine does not know" + by,
			"add its CA to those of this machine, or name a file with it in SSL_CERT_FILE, and start thaw anew"
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
		return "no answer in time"
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the connection was closed"
	}
	if strings.Contains(err.Error(), "certificate") {
		return "its certificate is not trusted here"
	}
	return "the connection failed"
}

package gateway

import (
	"net/http/httptest"
	"testing"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// TestForwardedProto: that TLS ended at a proxy is believed of proxies alone. A client that
// says so itself is redirected as any other.
func TestForwardedProto(t *testing.T) {
	for name, c := range map[string]struct {
		proxies []string
		peer    string
		field   string
		status  int
	}{
		"a client over http":             {nil, "203.0.113.7:4000", "", 301},
		"a client that claims https":     {nil, "203.0.113.7:4000", "https", 301},
		"one over IPv6":                  {nil, "[2001:db8::7]:4000", "https", 301},
		"GKE's, unnamed":                 {nil, "35.191.4.5:4000", "https", 301},
		"GKE's":                          {[]string{"35.191.0.0/16", "130.211.0.0/22"}, "130.211.1.2:4000", "https", 200},
		"carrier-grade NAT":              {nil, "100.64.0.7:4000", "https", 301},
		"a load balancer":                {nil, "10.1.2.3:4000", "https", 200},
		"a load balancer, in IPv6":       {nil, "[fd00::3]:4000", "https", 200},
		"a load balancer, mapped":        {nil, "[::ffff:10.1.2.3]:4000", "https", 200},
		"a client of it over http":       {nil, "10.1.2.3:4000", "http", 301},
		"a named one":                    {[]string{"203.0.113.0/28"}, "203.0.113.7:4000", "https", 200},
		"a single one":                   {[]string{"10.0.0.1", "203.0.113.7"}, "203.0.113.7:4000", "https", 200},
		"a private one that is no proxy": {[]string{"203.0.113.0/28"}, "10.1.2.3:4000", "https", 301},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *Options, _ *activator.Options) {
				var err error
				if o.TrustedProxies, err = ParsePrefixes(c.proxies); err != nil {
					t.Fatal(err)
				}
			})
			w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{{Name: "safe.example.com", Secure: true, Paths: []controlstream.Path{{Splits: splitTo(backend(t, sayEcho("svc")))}}}}})
			r := httptest.NewRequest("GET", "/x", nil)
			r.Host, r.RemoteAddr = "safe.example.com", c.peer
			if c.field != "" {
				r.Header.Set("X-Forwarded-Proto", c.field)
			}
			res := httptest.NewRecorder()
			w.g.Public().ServeHTTP(res, r)
			if res.Code != c.status {
				t.Errorf("%d %s", res.Code, res.Body)
			}
		})
	}
	if _, err := ParsePrefixes([]string{"10.0.0.0/8", "load-balancer"}); err == nil {
		t.Error("a name was taken for an address range")
	}
}

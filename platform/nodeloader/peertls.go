package nodeloader

import (
	"crypto/tls"

	"github.com/thaw-dev/thaw/loader/p2p"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// PeerTLS is the TLS between loaders: each shows the loaders' certificate and accepts no
// other. of returns the identity for each connection.
func PeerTLS(of func() (*mtls.Identity, error)) *p2p.TLS {
	return &p2p.TLS{
		Server: mtls.Server(of, controlstream.NameLoader),
		Client: func() (*tls.Config, error) {
			id, err := of()
			if err != nil {
				return nil, err
			}
			return mtls.Client(id, controlstream.NameLoader), nil
		},
	}
}

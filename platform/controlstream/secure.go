package controlstream

import (
	"crypto/tls"

	"github.com/thaw-dev/thaw/platform/mtls"
)

// Certified is how a link begins with the certificates of a folder (ClientOptions.TLS):
// they are read again for each. "" is plainly.
func Certified(folder string) (func() (*tls.Config, error), error) {
	if folder == "" {
		return nil, nil
	}
	f, err := mtls.Open(folder)
	if err != nil {
		return nil, err
	}
	return func() (*tls.Config, error) {
		id, err := f.Identity()
		if err != nil {
			return nil, err
		}
		return mtls.Client(id, NameController), nil
	}, nil
}

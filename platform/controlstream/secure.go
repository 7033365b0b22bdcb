package controlstream

import (
	"crypto/tls"

	"github.com/thaw-dev/thaw/platform/mtls"
)

// Certified returns ClientOptions.TLS for a folder of certificates, which is read again for
// each connection; nil, for plain connections, if folder is "".
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

package knative

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// What the Secret thaw-link holds beside the token. Pods of activators and loaders
// have the entries that are theirs as files, and no others.
const (
	linkRoots = "ca.crt"   // the authorities that are believed
	linkRoot  = "root.crt" // the one that signed what is shown now
	linkSince = "next-since"
	linkNext  = "next-" // of what is to be shown once everybody believes its authority

	// believe is how long others have to read a new authority: kubelets bring a
	// Secret to its pods within two minutes.
	believe = 10 * time.Minute
)

// linkEnds are the entries' names of those who have a certificate.
var linkEnds = map[string]string{"controller": controlstream.NameController, "activator": controlstream.NameActivator, "loader": controlstream.NameLoader}

// ErrLinks says that the Secret thaw-link does not hold what it should.
var ErrLinks = errors.New("the Secret " + LinkSecret)

// Links is what the Secret thaw-link says.
type Links struct {
	Token    string
	Identity *mtls.Identity // the controller's
}

// RenewLinks makes of the Secret's entries what they should be at a time: whatever is
// missing, and, in two steps, another authority where the certificates grow old. It
// reports whether something changed.
func RenewLinks(data map[string][]byte, now time.Time) (changed bool, err error) {
	if len(data[LinkKey]) == 0 {
		b := make([]byte, 32)
		rand.Read(b) // never fails: the runtime ends the program instead
		data[LinkKey] = []byte(base64.RawURLEncoding.EncodeToString(b))
		changed = true
	}
	issue := func(prefix string) error {
		made, err := mtls.Issue(now, slices.Sorted(maps.Values(linkEnds))...)
		if err != nil {
			return err
		}
		data[prefix+linkRoot] = made.Root
		for entry, name := range linkEnds {
			data[prefix+entry+".crt"], data[prefix+entry+".key"] = made.Leaves[name].Cert, made.Leaves[name].Key
		}
		changed = true
		return nil
	}
	forget := func() {
		for key := range data {
			if strings.HasPrefix(key, linkNext) {
				delete(data, key)
			}
		}
	}
	since, reads := time.Parse(time.RFC3339, string(data[linkSince]))
	switch {
	case !complete(data, now):
		forget()
		if err := issue(""); err != nil {
			return false, err
		}
		data[linkRoots] = data[linkRoot]
	case len(data[linkSince]) > 0 && (reads != nil || now.Sub(since) >= believe):
		// Who still shows what is old is believed until the next time.
		data[linkRoots] = slices.Concat(data[linkNext+linkRoot], data[linkRoot])
		for key := range data {
			if own, next := strings.CutPrefix(key, linkNext); next && key != linkSince {
				data[own] = data[key]
			}
		}
		forget()
		changed = true
	case len(data[linkSince]) == 0 && mtls.Old(data["controller.crt"], now):
		if err := issue(linkNext); err != nil {
			return false, err
		}
		data[linkRoots] = slices.Concat(data[linkRoot], data[linkNext+linkRoot])
		data[linkSince] = []byte(now.UTC().Format(time.RFC3339))
	}
	return changed, nil
}

// complete reports whether all ends have a certificate that is good now and fits.
func complete(data map[string][]byte, now time.Time) bool {
	for entry := range linkEnds {
		id, err := mtls.Read(data[linkRoots], mtls.Leaf{Cert: data[entry+".crt"], Key: data[entry+".key"]})
		if err != nil || id.Cert.Leaf == nil || now.After(id.Cert.Leaf.NotAfter) {
			return false
		}
	}
	return len(data[linkRoot]) > 0
}

// ReadLinks reads the Secret's entries.
func ReadLinks(data map[string][]byte) (*Links, error) {
	l := &Links{Token: strings.TrimSpace(string(data[LinkKey]))}
	if len(l.Token) < 32 {
		return nil, fmt.Errorf("%w holds no token of 32 characters or more under %q", ErrLinks, LinkKey)
	}
	var err error
	if l.Identity, err = mtls.Read(data[linkRoots], mtls.Leaf{Cert: data["controller.crt"], Key: data["controller.key"]}); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLinks, err)
	}
	return l, nil
}

// KeepLinks reads the Secret thaw-link, and with renew makes and renews what it
// holds: of several that try, one does, and all get the same.
func KeepLinks(ctx context.Context, secrets core.SecretInterface, renew bool, now time.Time) (*Links, error) {
	for range 5 {
		s, err := secrets.Get(ctx, LinkSecret, metav1.GetOptions{})
		if renew && status.IsNotFound(err) {
			s = &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: LinkSecret, Labels: map[string]string{"app.kubernetes.io/part-of": "thaw"}},
				Type:       corev1.SecretTypeOpaque, Data: map[string][]byte{},
			}
			if _, err = RenewLinks(s.Data, now); err != nil {
				return nil, err
			}
			s, err = secrets.Create(ctx, s, metav1.CreateOptions{})
			if status.IsAlreadyExists(err) {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		if renew {
			if s.Data == nil {
				s.Data = map[string][]byte{}
			}
			changed, err := RenewLinks(s.Data, now)
			if err != nil {
				return nil, err
			}
			if changed {
				if s, err = secrets.Update(ctx, s, metav1.UpdateOptions{}); status.IsConflict(err) {
					continue
				}
				if err != nil {
					return nil, err
				}
			}
		}
		return ReadLinks(s.Data)
	}
	return nil, fmt.Errorf("%w changes all the time", ErrLinks)
}

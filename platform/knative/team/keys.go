package team

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	kube "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/platform/knative/secret"
)

// SecretName is the Secret in a team's namespace with its API keys: entries by key id,
// each an Entry as JSON.
const SecretName = "thaw-keys"

// Entry is an API key as stored.
type Entry struct {
	Name    string `json:"name,omitempty"`
	Hash    string `json:"hash"`              // hex SHA-256 of the secret, which is 256 random bits
	Created string `json:"created,omitempty"` // RFC 3339
}

// Key is an API key without its hash.
type Key struct {
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	Team    string `json:"team"`
	Created string `json:"created,omitempty"`
	hash    string
}

// ErrNoKey: there is no such key.
var ErrNoKey = errors.New("no such key")

// Create creates a key of a team and returns its secret; the cluster stores only the hash.
// Activators know the key a moment later.
func Create(ctx context.Context, secrets kube.SecretsGetter, team, name string, now time.Time) (secret string, k Key, err error) {
	if len(name) > 128 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", Key{}, errors.New("the name of a key is at most 128 printable characters")
	}
	var b [32]byte
	rand.Read(b[:]) // never fails: the runtime ends the program instead
	secret = auth.Prefix + base64.RawURLEncoding.EncodeToString(b[:])
	var id [6]byte
	rand.Read(id[:])
	sum := sha256.Sum256([]byte(secret))
	k = Key{ID: hex.EncodeToString(id[:]), Name: name, Team: team, Created: now.UTC().Format(time.RFC3339)}
	entry, err := json.Marshal(Entry{Name: name, Hash: hex.EncodeToString(sum[:]), Created: k.Created})
	if err != nil {
		return "", Key{}, err
	}
	// Patches one entry, so that concurrent creations do not overwrite each other.
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{k.ID: entry}})
	if err != nil {
		return "", Key{}, err
	}
	for range 3 {
		if _, err = secrets.Secrets(team).Patch(ctx, SecretName, types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: "thaw"}); err == nil {
			return secret, k, nil
		}
		if !status.IsNotFound(err) {
			return "", Key{}, err
		}
		s := newSecret(team)
		s.Data = map[string][]byte{k.ID: entry}
		if _, err = secrets.Secrets(team).Create(ctx, s, metav1.CreateOptions{FieldManager: "thaw"}); err == nil {
			return secret, k, nil
		}
		if !status.IsAlreadyExists(err) { // created concurrently
			return "", Key{}, err
		}
	}
	return "", Key{}, err
}

// newSecret is the Secret of a team without keys.
func newSecret(team string) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: SecretName, Namespace: team, Labels: secret.Labels()},
		Type:       corev1.SecretTypeOpaque,
	}
}

// Delete deletes a key; activators know a moment later. ErrNoKey: the team has no key of
// that id.
func Delete(ctx context.Context, secrets kube.SecretsGetter, team, id string) error {
	s, err := secrets.Secrets(team).Get(ctx, SecretName, metav1.GetOptions{})
	if status.IsNotFound(err) {
		return ErrNoKey
	}
	if err != nil {
		return err
	}
	if _, there := s.Data[id]; !there {
		return ErrNoKey
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]any{id: nil}})
	if err != nil {
		return err
	}
	_, err = secrets.Secrets(team).Patch(ctx, SecretName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "thaw"})
	return err
}

// List returns the keys of a team, or of all for "", by team and age, and what could not
// be read.
func List(ctx context.Context, secrets kube.SecretsGetter, team string) ([]Key, []string, error) {
	list, err := secrets.Secrets(team).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", SecretName).String()})
	if err != nil {
		return nil, nil, fmt.Errorf("keys: %w", err)
	}
	keys := []Key{}
	var problems []string
	for i := range list.Items {
		found, bad := readEntries(&list.Items[i])
		keys, problems = append(keys, found...), append(problems, bad...)
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Team, b.Team), cmp.Compare(a.Created, b.Created), cmp.Compare(a.ID, b.ID))
	})
	return keys, problems, nil
}

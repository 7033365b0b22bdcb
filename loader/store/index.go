package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/loader/source"
)

// PlanKey names the files of a place in these versions. It is the same on every node.
func PlanKey(locationKey string, files []source.File) string {
	lines := functions.ConvertAll(files, func(f source.File) string { return fmt.Sprintf("%q %d %q\n", f.Name, f.Size, f.Version) })
	slices.Sort(lines)
	sum := sha256.Sum256(fmt.Appendf(nil, "%q\n%s", locationKey, strings.Join(lines, "")))
	return hex.EncodeToString(sum[:16])
}

// PlanIndex finds the checkpoints that plans led to, and the trees of files whose sha256
// a source names. Its methods are safe for concurrent use.
type PlanIndex struct{ layout *layout }

// DigestOfPlan returns the digest of the published checkpoint of a plan; "" if there
// is none.
func (p *PlanIndex) DigestOfPlan(key string) string {
	list, err := os.ReadDir(p.layout.path("sources"))
	if err != nil {
		return ""
	}
	for _, e := range list {
		raw, err := os.ReadFile(p.layout.path("sources", e.Name()))
		var ix planRecord
		if err == nil && json.Unmarshal(raw, &ix) == nil && ix.planKey() == key {
			return p.ifPublished(ix.Digest)
		}
	}
	return ""
}

// planRecord is the content of sources/<key>.json: the checkpoint that a plan led to.
type planRecord struct {
	LocationKey string     `json:"location"` // with the patterns of files staged beside
	Digest      string     `json:"digest"`
	Block       int64      `json:"block"` // size of the blocks of the trees
	Files       []planFile `json:"files"`
}

func (r *planRecord) planKey() string {
	return PlanKey(r.LocationKey, functions.ConvertAll(r.Files, func(f planFile) source.File {
		return source.File{Name: f.Name, Size: f.Size, Version: f.Version}
	}))
}

type planFile struct {
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	Version string `json:"version"`
	Tree    string `json:"tree"`
}

func (p *PlanIndex) indexPath(locationKey string) string {
	sum := sha256.Sum256([]byte(locationKey))
	return p.layout.path("sources", hex.EncodeToString(sum[:16])+".json")
}

func (p *PlanIndex) index(locationKey string) (planRecord, bool) {
	raw, err := os.ReadFile(p.indexPath(locationKey))
	var ix planRecord
	if err != nil || json.Unmarshal(raw, &ix) != nil || ix.LocationKey != locationKey {
		return planRecord{}, false
	}
	return ix, true
}

// LastDigest returns the digest of the checkpoint that a place led to last; "" if it
// never did, or if that checkpoint is gone.
func (p *PlanIndex) LastDigest(locationKey string) string {
	ix, _ := p.index(locationKey)
	return p.ifPublished(ix.Digest)
}

// DigestOf returns the digest of the published checkpoint of these files in these
// versions; "" if there is none.
func (p *PlanIndex) DigestOf(locationKey string, files []source.File) string {
	ix, ok := p.index(locationKey)
	if !ok || ix.planKey() != PlanKey(locationKey, files) {
		return ""
	}
	return p.ifPublished(ix.Digest)
}

func (p *PlanIndex) ifPublished(digest string) string {
	h, err := ParseDigest(digest)
	if err != nil {
		return ""
	}
	if _, err := os.Stat(p.layout.path("checkpoints", h, "manifest.json")); err != nil {
		return ""
	}
	return digest
}

// knownTrees returns, per file, the tree digest of its bytes if known before they arrive.
func (p *PlanIndex) knownTrees(locationKey string, files []source.File, block int64) []string {
	out := make([]string, len(files))
	ix, _ := p.index(locationKey)
	for i, f := range files {
		if f.SHA256 != "" {
			out[i] = p.treeOfSHA256(f.SHA256, block)
			continue
		}
		for _, k := range ix.Files {
			if k.Name == f.Name && k.Size == f.Size && k.Version == f.Version && f.Version != "" && ix.Block == block && isHex(k.Tree, 64) {
				out[i] = k.Tree
			}
		}
	}
	return out
}

// knownPath is the file that holds the tree digest of the bytes with this sha256.
func (p *PlanIndex) knownPath(sha string, block int64) string {
	return p.layout.path("known", fmt.Sprintf("%s-%d", sha, block))
}

// treeOfSHA256 returns the tree digest of the blob whose sha256 a source named; "" if it
// is unknown.
func (p *PlanIndex) treeOfSHA256(sha string, block int64) string {
	if !isHex(sha, 64) {
		return ""
	}
	raw, err := os.ReadFile(p.knownPath(sha, block))
	if err != nil || !isHex(string(raw), 64) {
		return ""
	}
	return string(raw)
}

// dropKnown removes the known digests of blobs that are gone. The caller holds the
// store's lock.
func (p *PlanIndex) dropKnown() error {
	list, err := os.ReadDir(p.layout.path("known"))
	if err != nil {
		return err
	}
	for _, e := range list {
		raw, err := os.ReadFile(p.layout.path("known", e.Name()))
		if err == nil && isHex(string(raw), 64) {
			_, err = os.Stat(p.layout.blob(string(raw)))
		} else if err == nil {
			err = os.ErrNotExist
		}
		if errors.Is(err, os.ErrNotExist) {
			err = ignoreMissing(os.Remove(p.layout.path("known", e.Name())))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (i *Ingest) writeIndex(e Entry) error {
	ix := planRecord{LocationKey: i.locationKey, Digest: e.Digest, Block: e.Block}
	for index, p := range i.Parts {
		ix.Files = append(ix.Files, planFile{Name: p.File.Name, Size: p.File.Size, Version: p.File.Version, Tree: e.Files[index].Tree})
	}
	raw, err := json.Marshal(ix)
	if err != nil {
		return err
	}
	return i.s.layout.change("write index", func() error { return durable.WriteFile(i.s.Plans.indexPath(i.locationKey), raw, 0o644) })
}

package azure

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/thaw-dev/thaw/loader/source"
)

type blobLocation struct {
	account, container string
	prefix             string // without a slash at either end; empty for the whole container
	endpoint           string // https://HOST of the https form; empty for az://
}

func (l blobLocation) String() string {
	return strings.TrimSuffix(fmt.Sprintf("az://%s/%s/%s", l.account, l.container, l.prefix), "/")
}

var (
	accountName   = regexp.MustCompile(`^[a-z0-9]+$`)
	containerName = regexp.MustCompile(`^(\$root|\$web|[a-z0-9](-?[a-z0-9])+)$`)
	// Hosts of blob endpoints in Azure's clouds. Any other host is refused: a
	// source must not be a way to make this machine call an address.
	blobHost = regexp.MustCompile(`^([a-z0-9]+)\.(z[0-9]+\.)?blob\.(core\.windows\.net|core\.usgovcloudapi\.net|core\.chinacloudapi\.cn|storage\.azure\.net)$`)
)

// parse reads az://ACCOUNT/CONTAINER/PREFIX and
// https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX.
func parse(location string) (blobLocation, error) {
	bad := func(problem string) (blobLocation, error) {
		return blobLocation{}, &source.Error{Kind: source.BadSource, Source: location, Detail: problem,
			Fix: "az://ACCOUNT/CONTAINER/PREFIX or https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX"}
	}
	if strings.ContainsAny(location, "?#@") {
		// Not repeated: a query may be a signature.
		return blobLocation{}, source.Fail(source.BadSource, "the source holds a query, a fragment or a user name",
			"leave it out; for a SAS set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_SAS_TOKEN")
	}
	var p blobLocation
	var rest string
	switch {
	case strings.HasPrefix(location, "az://"):
		p.account, rest, _ = strings.Cut(strings.TrimPrefix(location, "az://"), "/")
	case strings.HasPrefix(location, "https://"):
		u, err := url.Parse(location)
		if err != nil {
			return bad("is not a URL")
		}
		m := blobHost.FindStringSubmatch(u.Host)
		if m == nil {
			return bad(fmt.Sprintf("%q is not a host of Azure Blob Storage", u.Host))
		}
		p.account, p.endpoint = m[1], "https://"+u.Host
		rest = strings.TrimPrefix(u.Path, "/")
	default:
		return bad("is not a blob folder")
	}
	p.container, p.prefix, _ = strings.Cut(rest, "/")
	p.prefix = strings.Trim(p.prefix, "/")
	switch {
	case len(p.account) < 3 || len(p.account) > 24 || !accountName.MatchString(p.account):
		return bad(fmt.Sprintf("%q is not the name of a storage account", p.account))
	case p.container == "":
		return bad("names no container")
	case len(p.container) < 3 || len(p.container) > 63 || !containerName.MatchString(p.container):
		return bad(fmt.Sprintf("%q is not the name of a container", p.container))
	case strings.ContainsFunc(p.prefix, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }):
		return bad("holds a backslash or a control character")
	}
	for part := range strings.SplitSeq(p.prefix, "/") {
		if part == "." || part == ".." || part == "" && p.prefix != "" {
			return bad("holds an empty part, . or ..")
		}
	}
	return p, nil
}

package functions

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Spellings of a source, as messages list them.
const (
	spellings     = "a folder, file:///…, az://ACCOUNT/CONTAINER/PREFIX, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, hf://ORG/REPO[@REV] or https://…"
	sourceSchemes = "file az s3 gs hf https"
)

// sourceForms is how each scheme is written, with the first part that has to be
// there.
var sourceForms = map[string]struct{ form, first string }{
	"az":    {"az://ACCOUNT/CONTAINER/PREFIX", "account"},
	"s3":    {"s3://BUCKET/PREFIX", "bucket"},
	"gs":    {"gs://BUCKET/PREFIX", "bucket"},
	"hf":    {"hf://ORG/REPO[@REV]", "organisation"},
	"https": {"https://HOST/FOLDER", "host"},
}

// schemeAliases are what other tools call a scheme.
var schemeAliases = map[string]string{
	"azure": "az", "abfs": "az", "abfss": "az", "wasb": "az", "wasbs": "az", "adl": "az", "blob": "az",
	"s3a": "s3", "s3n": "s3", "aws": "s3", "minio": "s3", "r2": "s3",
	"gcs": "gs", "google": "gs", "gsutil": "gs",
	"huggingface": "hf", "hub": "hf", "hf.co": "hf", "huggingface.co": "hf",
	"dir": "file", "local": "file", "pvc": "file",
}

// The patterns have no counted repetitions, which would be expanded at every start of
// the program. The readers of each scheme bound the lengths.
var (
	hubRepo = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[^/@\s][^@\s]*)?(/.*)?$`)
	bucket  = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]+[a-z0-9]$`)
	// Q4_K_M, IQ2_XXS, UD-Q4_K_XL, BF16, MXFP4: what Ollama writes behind a colon
	quantisation = regexp.MustCompile(`(?i)^(ud-)?(i?q\d|b?f(p)?16|f32|tq\d|mxfp)`)
	bareHost     = regexp.MustCompile(`^[a-z0-9.-]+\.(com|co|net|org|io|dev)/`)
	// what links of hubs' pages end with
	downloadQuery = regexp.MustCompile(`\?(download|raw)=(true|1)$`)
	schemeish     = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]+):/?/?[^/\\]`)
)

// foreignPaths are what shells, templates and other systems understand, and what to write.
var foreignPaths = []struct {
	pattern *regexp.Regexp
	hint    string
}{
	{regexp.MustCompile(`\$\{?\w|\{\{|^%\w+%`), "variables are not filled in here: write the value"},
	{regexp.MustCompile(`^~`), "~ is not filled in here: write the whole path"},
	{regexp.MustCompile(`^/?[A-Za-z]:[\\/]|^\\\\`), "paths of Windows are not read; within WSL drive C is /mnt/c"},
	{regexp.MustCompile(`^\w+@[\w.-]+:`), "git repositories are not read; the hub is hf://ORG/REPO[@REV]"},
}

// CheckSource checks the spelling of a source and returns the problem and its fix, or
// nothing. Whether the source exists, and each scheme's finer rules, the loader checks.
func CheckSource(s string) (message, hint string) {
	if strings.TrimSpace(s) != s {
		return "begins or ends with a blank or a line end", "leave it out"
	}
	if !printable(s) {
		return "holds a control character or is not UTF-8", "write it again by hand, on one line"
	}
	const quotes = "'\"“”‘’"
	if bare := strings.TrimLeft(strings.TrimFunc(s, isInvisible), quotes); bare != s {
		return "begins or ends with a quote or an invisible character", "leave it out: " + Clip(strings.TrimRight(bare, quotes))
	}
	if strings.Contains(s, "*") {
		return "holds a pattern (*)", `name the folder; spec.weights: "*.gguf" chooses files of it`
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return checkPath(s)
	}
	if scheme == "http" {
		return "weights are not fetched over plain http", "use https://"
	}
	if scheme == "file" {
		if !strings.HasPrefix(rest, "/") {
			return fmt.Sprintf("%q is no absolute path", Clip(s)), "file:///absolute/path"
		}
		return checkPath(rest)
	}
	f, known := sourceForms[scheme]
	if !known {
		if correct := correctScheme(scheme); correct == "file" {
			return fmt.Sprintf("thaw cannot read %s:// sources", Clip(scheme)), "did you mean file:///absolute/path?"
		} else if correct != "" {
			return fmt.Sprintf("thaw cannot read %s:// sources", Clip(scheme)), fmt.Sprintf("did you mean %s? It is written %s", Clip(correct+"://"+fromContainer(rest)), sourceForms[correct].form)
		}
		return fmt.Sprintf("thaw cannot read %s:// sources", Clip(scheme)), spellings
	}
	if strings.Contains(s, "{{") || strings.Contains(s, "${") {
		return fmt.Sprintf("%q has a variable", Clip(noSecret(s))), foreignPaths[0].hint
	}
	if download := downloadQuery.FindString(rest); download != "" {
		return fmt.Sprintf("the address ends with %s, as a page's link does", download), "leave " + download + " out"
	}
	if strings.ContainsAny(rest, "?#") || scheme != "hf" && strings.Contains(rest, "@") {
		return "a source carries no query, fragment or credentials", "credentials come from the environment, as the cloud's own tools take them"
	}
	first, _, _ := strings.Cut(rest, "/")
	if first == "" {
		return fmt.Sprintf("%q names no %s", Clip(s), f.first), f.form
	}
	switch scheme {
	case "az":
		return checkAzure(s, first, rest)
	case "s3", "gs":
		if !bucket.MatchString(first) {
			hint := f.form
			if low := strings.ToLower(first); bucket.MatchString(low) {
				hint = fmt.Sprintf("did you mean %s://%s? Buckets are written in small letters", scheme, Clip(low))
			}
			return fmt.Sprintf("%q is not the name of a bucket", Clip(first)), hint
		}
	case "https":
		return checkAddress(s, rest)
	case "hf":
		return checkHub(s, rest)
	}
	return "", ""
}

func isInvisible(r rune) bool { return unicode.Is(unicode.Cf, r) }

// checkAzure looks at account and container of an az:// source.
func checkAzure(s, account, rest string) (message, hint string) {
	_, container, _ := strings.Cut(rest, "/")
	container, prefix, _ := strings.Cut(strings.Trim(container, "/"), "/")
	name, host, isHost := strings.Cut(account, ".")
	switch {
	case container == "":
		return fmt.Sprintf("%q names no container", Clip(s)), sourceForms["az"].form
	case isHost && strings.HasPrefix(host, "blob.core.") || isHost && strings.HasPrefix(host, "dfs.core."):
		return fmt.Sprintf("%q is a host, and the account alone is named", Clip(account)),
			"did you mean az://" + Clip(strings.TrimRight(name+"/"+container+"/"+prefix, "/")) + "?"
	case strings.ToLower(account+container) != account+container && strings.ToUpper(account) != account: // ACCOUNT stands for one
		return "names of accounts and containers are written in small letters",
			"did you mean az://" + Clip(strings.TrimRight(strings.ToLower(account+"/"+container)+"/"+prefix, "/")) + "?"
	}
	return "", ""
}

// checkAddress looks at an https:// source.
func checkAddress(s, rest string) (message, hint string) {
	if u, err := url.Parse(s); err != nil || u.Hostname() == "" {
		return fmt.Sprintf("%q is no valid address", Clip(s)), sourceForms["https"].form
	}
	part := strings.Split(rest, "/")
	if len(part) < 4 || part[0] != "huggingface.co" && part[0] != "hf.co" || slices.Contains([]string{"tree", "blob", "resolve"}, part[3]) {
		return "", ""
	}
	repo := "hf://" + part[1] + "/" + part[2]
	if part[3] == "commit" && len(part) > 4 {
		repo += "@" + part[4]
	}
	return "that is another page of the hub than a model's", "did you mean " + Clip(repo) + "?"
}

// checkHub looks at an hf:// source.
func checkHub(s, rest string) (message, hint string) {
	problem := fmt.Sprintf("%q does not name a repository of the hub", Clip(s))
	if part := strings.Split(rest, "/"); len(part) > 2 {
		switch part[0] {
		case "models":
			return problem, "did you mean hf://" + Clip(strings.Join(part[1:], "/")) + "?"
		case "datasets", "spaces":
			return fmt.Sprintf("%q is no model", Clip(s)), "of the hub's repositories models are read: hf://ORG/REPO[@REV]"
		}
	}
	if page, ok := strings.CutPrefix(rest, "https://"); ok && strings.HasPrefix(page, "h") {
		return problem, "did you mean https://" + Clip(page) + "?"
	}
	if part := strings.Split(rest, "/"); len(part) > 3 && slices.Contains([]string{"tree", "blob", "resolve"}, part[2]) {
		return problem + " as a page of it does", "did you mean https://huggingface.co/" + Clip(rest) + "?"
	}
	if hubRepo.MatchString(rest) {
		return "", ""
	}
	hint = sourceForms["hf"].form
	if repo, rev, ok := strings.Cut(rest, ":"); ok && hubRepo.MatchString(repo+"@"+rev) {
		hint = correctTag(repo, rev)
	}
	return problem, hint
}

// checkPath looks at what has no "://": a path, unless it looks like a scheme
// with its slashes lost or like a host.
func checkPath(s string) (message, hint string) {
	for _, f := range foreignPaths {
		if f.pattern.MatchString(s) {
			return fmt.Sprintf("%q is no path", Clip(noSecret(s))), f.hint
		}
	}
	if m := schemeish.FindStringSubmatch(s); m != nil {
		rest := strings.TrimLeft(s[len(m[1])+1:], "/")
		if correct := correctScheme(strings.ToLower(m[1])); correct != "" && correct != "file" {
			return fmt.Sprintf("%q is neither a path nor a URL", Clip(noSecret(s))), fmt.Sprintf("did you mean %s? It is written %s", Clip(correct+"://"+noSecret(rest)), sourceForms[correct].form)
		}
	}
	if bareHost.MatchString(s) {
		host, repo, _ := strings.Cut(s, "/")
		if host == "huggingface.co" || host == "hf.co" {
			repo, tag, tagged := strings.Cut(noSecret(repo), ":")
			hint := fmt.Sprintf("did you mean hf://%s?", Clip(repo))
			if tagged {
				hint = correctTag(repo, tag)
			}
			message = fmt.Sprintf("%q is a path here, and looks like a host", Clip(noSecret(s)))
			return message, hint + " For a folder of that name write ./" + Clip(noSecret(s))
		}
		return fmt.Sprintf("%q is a path here, and looks like a host", Clip(noSecret(s))), fmt.Sprintf("did you mean https://%s? For a folder of that name write ./%s", Clip(noSecret(s)), Clip(noSecret(s)))
	}
	return "", ""
}

// correctTag is how ORG/REPO:TAG is written, where the tag is a quantisation or a revision.
func correctTag(repo, tag string) string {
	if quantisation.MatchString(tag) {
		return fmt.Sprintf("did you mean hf://%s, with weights: \"*%s*\" beside it?", Clip(repo), Clip(tag))
	}
	return fmt.Sprintf("did you mean hf://%s? A revision follows an @.", Clip(repo+"@"+tag))
}

// fromContainer returns ACCOUNT/CONTAINER/PREFIX of Hadoop's CONTAINER@ACCOUNT.HOST/PREFIX,
// and other spellings without secrets.
func fromContainer(s string) string {
	place, prefix, _ := strings.Cut(s, "/")
	container, host, ok := strings.Cut(place, "@")
	account, _, dotted := strings.Cut(host, ".")
	if !ok || !dotted || strings.Contains(container, ":") {
		return noSecret(s)
	}
	return strings.TrimSuffix(account+"/"+container+"/"+noSecret(prefix), "/")
}

// correctScheme is the scheme that was meant, or empty.
func correctScheme(word string) string {
	if word == "http" || word == "https" {
		return "https"
	}
	low := strings.ToLower(word)
	if a, ok := schemeAliases[low]; ok {
		return a
	}
	if _, ok := sourceForms[low]; ok || low == "file" {
		return low
	}
	// Two letters are too little to be near anything.
	if len(low) < 4 {
		return ""
	}
	if nearest := Nearest(low, append(strings.Fields(sourceSchemes), "huggingface", "azure"), 1); len(nearest) > 0 {
		return cmp.Or(schemeAliases[nearest[0]], nearest[0])
	}
	return ""
}

// noSecret cuts what may be a signature off a text that is repeated.
func noSecret(s string) string {
	if i := strings.IndexAny(s, "?#"); i >= 0 {
		s = s[:i]
	}
	// A user and password are before the last @ of the first part.
	first, rest, slash := strings.Cut(s, "/")
	if i := strings.LastIndexByte(first, '@'); i >= 0 {
		first = first[i+1:]
	}
	if slash {
		return first + "/" + rest
	}
	return first
}

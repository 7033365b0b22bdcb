package knative

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/thaw-dev/thaw/functions"
)

// SourceSecret is the Secret in thaw's namespace whose keys the loaders have in their
// environment, and as files in SourceFolder, where it exists. install --source-secret
// names another.
const SourceSecret = "thaw-sources"

// SourceFolder is where loaders have the keys of SourceSecret as files.
const SourceFolder = "/run/sources"

// loaderName is the DaemonSet of the loaders and their ServiceAccount.
const loaderName = "thaw-loader"

// sourceCredential is how loaders get the credentials of one scheme of sources.
type sourceCredential struct {
	variables  []string // each of them is a credential, or says where one is
	annotation string   // begins an annotation of the loaders' ServiceAccount that gives them an identity
	create     string   // arguments of kubectl create secret generic
	without    string   // what is left without a credential
}

var sourceCredentials = map[string]sourceCredential{
	"az": {[]string{"AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"}, "azure.workload.identity/",
		"--from-literal=AZURE_STORAGE_ACCOUNT=ACCOUNT --from-literal=AZURE_STORAGE_SAS_TOKEN=SAS",
		"only an identity of the nodes gives them access"},
	"s3": {[]string{"AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "THAW_S3_ANONYMOUS"}, "eks.amazonaws.com/",
		"--from-literal=AWS_ACCESS_KEY_ID=ID --from-literal=AWS_SECRET_ACCESS_KEY=KEY --from-literal=AWS_REGION=REGION",
		"only a role of the nodes gives them access"},
	"gs": {[]string{"GOOGLE_APPLICATION_CREDENTIALS", "THAW_GCS_ANONYMOUS"}, "iam.gke.io/",
		"--from-file=gcs.json=FILE --from-literal=GOOGLE_APPLICATION_CREDENTIALS=" + SourceFolder + "/gcs.json",
		"only public buckets, or an identity of the nodes, give them access"},
	"hf": {[]string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"}, "",
		"--from-literal=HF_TOKEN=TOKEN", "only public repositories can be read"},
}

// sourcesOf returns the sources of a service's model and its adapters; none of one written by
// hand.
func sourcesOf(s *servingv1.Service) []string {
	var m functions.Model
	if json.Unmarshal([]byte(s.Annotations[ModelAnnotation]), &m) != nil {
		return nil
	}
	return append(functions.ConvertAll(m.Spec.Adapters, func(a functions.Adapter) string { return a.Source }), m.Spec.Source)
}

// folderFindings finds folders of a service's sources that the loaders, whose flag --folder
// names theirs, do not have.
func folderFindings(s *servingv1.Service, loader *corev1.PodSpec) (found []Finding) {
	for _, source := range sourcesOf(s) {
		folder, is := strings.CutPrefix(source, "file://")
		if is && !slices.ContainsFunc(loader.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(c.Args, func(arg string) bool {
				root, is := strings.CutPrefix(arg, "--folder=")
				return is && strings.HasPrefix(folder+"/", strings.TrimRight(root, "/")+"/")
			})
		}) {
			found = append(found, badFinding("mount it into the loaders: loader.folders of the chart, such as [{path: "+folder+"}]; or upload it",
				"%s: the loaders have no folder %s", s.Name, folder))
		}
	}
	return found
}

// checkSources checks for each scheme that the sources of services have whether the
// loaders have a credential. It reads the names of what they have, and the one value that
// is no secret: the name of a storage account.
func (d *doctor) checkSources(ctx context.Context) error {
	accounts := map[string][]string{} // by scheme: accounts of az, else nothing
	for _, s := range d.services {
		for _, source := range sourcesOf(s) {
			scheme, rest, _ := strings.Cut(source, "://")
			if _, known := sourceCredentials[scheme]; !known {
				continue
			}
			account, _, _ := strings.Cut(rest, "/")
			if !slices.Contains(accounts[scheme], account) {
				accounts[scheme] = append(accounts[scheme], account)
			}
		}
	}
	if len(accounts) == 0 {
		return nil
	}
	loader, err := d.c.kube.AppsV1().DaemonSets(System).Get(ctx, loaderName, metav1.GetOptions{})
	if isNotFound(err) {
		return nil // reported by checkInstalled or checkParts
	} else if err != nil {
		return d.ignoreForbidden(err, System+"/"+loaderName)
	}
	env, secret, err := d.loaderEnvironment(ctx, &loader.Spec.Template.Spec)
	if err != nil || env == nil {
		return err
	}
	var annotations map[string]string
	account, err := d.c.kube.CoreV1().ServiceAccounts(System).Get(ctx, loaderName, metav1.GetOptions{})
	if err == nil {
		annotations = account.Annotations
	} else if !isNotFound(err) {
		if err = d.ignoreForbidden(err, System+"/"+loaderName); err != nil {
			return err
		}
	}
	for _, scheme := range slices.Sorted(maps.Keys(accounts)) {
		d.add(credentialFinding(scheme, accounts[scheme], env, annotations, secret))
	}
	return nil
}

// loaderEnvironment returns the names of the variables that loaders have, with the values
// that stand in the DaemonSet and the name of a storage account, and the Secret of
// sources. env is nil where the account may not look.
func (d *doctor) loaderEnvironment(ctx context.Context, spec *corev1.PodSpec) (env map[string]string, secret string, err error) {
	env, secret = map[string]string{}, SourceSecret
	for _, container := range spec.Containers {
		if container.Name != "loader" {
			continue
		}
		for _, from := range container.EnvFrom {
			if from.SecretRef == nil {
				continue
			}
			secret = from.SecretRef.Name
			s, err := d.c.Secrets(System).Get(ctx, secret, metav1.GetOptions{})
			if isNotFound(err) {
				continue
			} else if err != nil {
				return nil, secret, d.ignoreForbidden(err, "secret "+secret)
			}
			for name, value := range s.Data {
				env[name] = ""
				if name == "AZURE_STORAGE_ACCOUNT" {
					env[name] = string(value)
				}
			}
		}
		for _, e := range container.Env {
			env[e.Name] = e.Value
		}
	}
	return env, secret, nil
}

func credentialFinding(scheme string, accounts []string, env, annotations map[string]string, secret string) Finding {
	has := sourceCredentials[scheme]
	hint := fmt.Sprintf("%s; kubectl create secret generic %s -n %s %s && kubectl rollout restart daemonset/%s -n %s", has.without, secret,
		System, has.create, loaderName, System)
	for name := range annotations {
		if has.annotation != "" && strings.HasPrefix(name, has.annotation) {
			return goodFinding("loaders have an identity for %s:// sources: %s of the ServiceAccount %s", scheme, name, loaderName)
		}
	}
	for _, name := range has.variables {
		if _, set := env[name]; !set {
			continue
		}
		if of := env["AZURE_STORAGE_ACCOUNT"]; (name == "AZURE_STORAGE_SAS_TOKEN" || name == "AZURE_STORAGE_KEY") &&
			(of == "" || len(accounts) > 1 || accounts[0] != of) {
			others := slices.DeleteFunc(slices.Clone(accounts), func(a string) bool { return a == of })
			if of == "" {
				return noteFinding(hint, "%s of the loaders is used for no source: there is no AZURE_STORAGE_ACCOUNT beside it", name)
			}
			return noteFinding("it is used for its own account alone; an identity with rights on both serves several",
				"%s of the loaders is of account %s, and there are sources of %s", name, of, strings.Join(others, ", "))
		}
		return goodFinding("loaders have a credential for %s:// sources: %s", scheme, name)
	}
	return noteFinding(hint, "loaders have no credential for %s:// sources", scheme)
}

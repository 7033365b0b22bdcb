package knative

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

// TestSources: the doctor names the sources of models for which loaders have no
// credential, and tells no value of one.
func TestSources(t *testing.T) {
	const az, two = "source: 'az://acct/models/a'", "source: 'az://acct/models/a', adapters: [{name: x, source: 'az://other/models/x'}]"
	sas := map[string]string{"AZURE_STORAGE_SAS_TOKEN": "sig=hidden"}
	ofAccount := map[string]string{"AZURE_STORAGE_SAS_TOKEN": "sig=hidden", "AZURE_STORAGE_ACCOUNT": "acct"}
	for _, x := range []struct {
		name, spec string
		secret     map[string]string // nil: there is none
		edit       func(map[string]runtime.Object)
		forbidden  string
		good       bool
		what, hint string // "": no finding
	}{
		{name: "no Secret", spec: az, what: "loaders have no credential for az:// sources", hint: "kubectl create secret generic buckets -n thaw-system --from-literal=AZURE_STORAGE_ACCOUNT=ACCOUNT --from-literal=AZURE_STORAGE_SAS_TOKEN=SAS && kubectl rollout restart daemonset/thaw-loader"},
		{name: "of another source", spec: az, secret: map[string]string{"HF_TOKEN": "hidden"}, what: "loaders have no credential for az:// sources"},
		{name: "of the account", spec: az, secret: ofAccount, good: true, what: "loaders have a credential for az:// sources: AZURE_STORAGE_SAS_TOKEN"},
		{name: "of no account", spec: az, secret: sas, what: "AZURE_STORAGE_SAS_TOKEN of the loaders is used for no source", hint: "--from-literal=AZURE_STORAGE_ACCOUNT=ACCOUNT"},
		{name: "of one of two accounts", spec: two, secret: ofAccount, what: "is of account acct, and there are sources of other"},
		{name: "in the DaemonSet", spec: az, edit: func(o map[string]runtime.Object) {
			containers := o["DaemonSet thaw-loader"].(*appsv1.DaemonSet).Spec.Template.Spec.Containers
			containers[0].Env = []corev1.EnvVar{{Name: "AZURE_CLIENT_ID", Value: "id"}}
		}, good: true, what: "AZURE_CLIENT_ID"},
		{name: "an identity", spec: "source: 's3://bucket/a'", edit: func(o map[string]runtime.Object) {
			o["ServiceAccount thaw-loader"] = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: System, Name: "thaw-loader", Annotations: map[string]string{"eks.amazonaws.com/role-arn": "arn"}}}
		}, good: true, what: "loaders have an identity for s3:// sources"},
		{name: "a file", spec: "source: 'gs://bucket/a'", what: "gs:// sources", hint: "GOOGLE_APPLICATION_CREDENTIALS=/run/sources/gcs.json"},
		{name: "a hub", spec: "source: 'hf://a/b'", what: "hf:// sources", hint: "only public repositories"},
		{name: "a web server", spec: "source: 'https://example.com/a'"},
		{name: "not to be read", spec: az, forbidden: "secrets"},
	} {
		t.Run(x.name, func(t *testing.T) {
			o := healthy()
			spec := &o["DaemonSet thaw-loader"].(*appsv1.DaemonSet).Spec.Template.Spec
			spec.Containers[0].Name = "loader"
			spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "buckets"}}}}
			if x.secret != nil {
				data := map[string][]byte{}
				for k, v := range x.secret {
					data[k] = []byte(v)
				}
				o["Secret buckets"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: System, Name: "buckets"}, Data: data}
			}
			if x.edit != nil {
				x.edit(o)
			}
			m := models(t, "a", "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: qwen, namespace: ml}\nspec: {engine: vllm, "+x.spec+"}\n")[0]
			s, err := Render(m, Settings{Thaw: thawImage})
			if err != nil {
				t.Fatal(err)
			}
			d := &doctor{c: clusterOf(o, x.forbidden), services: []*servingv1.Service{s}}
			if err := d.checkSources(t.Context()); err != nil {
				t.Fatal(err)
			}
			found := d.found
			if x.what == "" && len(found) > 0 ||
				x.what != "" && (len(found) != 1 || found[0].Good != x.good || found[0].Bad() || !strings.Contains(found[0].What, x.what) ||
					!strings.Contains(found[0].Hint, x.hint)) {
				t.Errorf("it finds %+v", found)
			}
			for _, f := range found {
				if strings.Contains(f.What+f.Hint, "hidden") {
					t.Errorf("it tells a secret: %+v", f)
				}
			}
		})
	}
}

// TestFolders: a source of the nodes' folders is refused before it is applied, unless the
// loaders have that folder.
func TestFolders(t *testing.T) {
	for source, has := range map[string]bool{"file:///mnt/models/a": true, "file:///mnt/models": true, "file:///nfs/b": true,
		"file:///mnt/models2/a": false, "file:///mnt": false, "hf://a/b": true} {
		o := healthy()
		loader := &o["DaemonSet thaw-loader"].(*appsv1.DaemonSet).Spec.Template.Spec
		loader.Containers[0].Args = []string{"loader", "--folder=/mnt/models", "--folder=/nfs/"}
		m := models(t, "a", "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: qwen, namespace: ml}\n"+
			"spec: {engine: ember, source: '"+source+"'}\n")[0]
		s, err := Render(m, Settings{Thaw: thawImage})
		if err != nil {
			t.Fatal(err)
		}
		err = clusterOf(o, "").Check(t.Context(), s)
		if refused := err != nil && strings.Contains(err.Error(), "the loaders have no folder"); refused == has {
			t.Errorf("%s: %v", source, err)
		}
	}
}

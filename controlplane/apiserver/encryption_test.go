package apiserver_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// keysFile is a configuration that encrypts secrets with the first of the keys, which are
// PROVIDER/NAME or kms/ENDPOINT, and reads them with any.
func keysFile(t *testing.T, file string, keys ...string) string {
	t.Helper()
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n"
	for _, k := range keys {
		provider, name, _ := strings.Cut(k, "/")
		switch provider {
		case "identity":
			text += "  - identity: {}\n"
			continue
		case "kms":
			text += fmt.Sprintf("  - kms: {apiVersion: v2, name: plugin, endpoint: '%s', timeout: 2s}\n", name)
			continue
		}
		secret := base64.StdEncoding.EncodeToString([]byte(fmt.Sprintf("%-32s", name)))
		text += fmt.Sprintf("  - %s: {keys: [{name: %s, secret: %s}]}\n", provider, name, secret)
	}
	if file == "" {
		file = filepath.Join(t.TempDir(), "keys.yaml")
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// withKeys runs a server on the data in dir while use runs.
func withKeys(t *testing.T, dir string, e apiserver.Encryption, use func(in *instance)) {
	t.Helper()
	in, err := startWith(dir, func(c *apiserver.Config) { c.Encryption = e })
	if err != nil {
		t.Fatal(err)
	}
	use(in)
	if err := in.stop(); err != nil {
		t.Error(err)
	}
}

// inStore says whether the files of the store hold text.
func inStore(t *testing.T, dir, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(filepath.Join(dir, "etcd"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		found = found || bytes.Contains(b, []byte(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func secretNamed(name, value string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"k": []byte(value)}}
}

func read(t *testing.T, in *instance, name, want string) {
	t.Helper()
	s, err := in.client.CoreV1().Secrets("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || string(s.Data["k"]) != want {
		t.Errorf("secret %s: %v, %v", name, s, err)
	}
}

// Secrets lie encrypted in the store, what else there is does not, and keys are rotated:
// a new one first, then everything is written again, then the old one is left out.
func TestEncryptionAtRest(t *testing.T) {
	t.Parallel()
	for i, provider := range []string{"aescbc", "aesgcm", "secretbox"} {
		t.Run(provider, func(t *testing.T) {
			dir := t.TempDir()
			plain, hidden := fmt.Sprintf("plain-for-all-%d", i), fmt.Sprintf("hidden-from-all-%d", i)
			first, second := provider+"/one", provider+"/two"
			withKeys(t, dir, apiserver.Encryption{ConfigFile: keysFile(t, "", first, "identity")}, func(in *instance) {
				must(in.client.CoreV1().Secrets("default").Create(t.Context(), secretNamed("s", hidden), metav1.CreateOptions{}))(t)
				must(in.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Data: map[string]string{"k": plain}}, metav1.CreateOptions{}))(t)
				read(t, in, "s", hidden)
			})
			if !inStore(t, dir, plain) {
				t.Error("the search does not find what is not encrypted")
			}
			if inStore(t, dir, hidden) {
				t.Error("the secret can be read in the store")
			}
			if provider != "aescbc" {
				return // rotation is the same for all
			}
			withKeys(t, dir, apiserver.Encryption{ConfigFile: keysFile(t, "", second, first)}, func(in *instance) {
				read(t, in, "s", hidden)
				s := must(in.client.CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{}))(t)
				must(in.client.CoreV1().Secrets("default").Update(t.Context(), s, metav1.UpdateOptions{}))(t) // written though nothing changed
			})
			withKeys(t, dir, apiserver.Encryption{ConfigFile: keysFile(t, "", second)}, func(in *instance) { read(t, in, "s", hidden) })
		})
	}
}

// A file that changes is read again: what is written from then on needs the new key only.
func TestEncryptionReload(t *testing.T) {
	dir := t.TempDir()
	file := keysFile(t, "", "aesgcm/one")
	withKeys(t, dir, apiserver.Encryption{ConfigFile: file, Reload: true}, func(in *instance) {
		reloads := func(status string) bool {
			body := must(in.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))(t)
			for line := range strings.Lines(string(body)) {
				if strings.HasPrefix(line, "apiserver_encryption_config_controller_automatic_reloads_total{") && strings.Contains(line, `status="`+status+`"`) && !strings.HasSuffix(line, " 0\n") {
					return true
				}
			}
			return false
		}
		if err := os.WriteFile(file, []byte("broken"), 0o600); err != nil {
			t.Fatal(err)
		}
		until(t, "the broken file has been tried", func() bool { return reloads("failure") })
		must(in.client.CoreV1().Secrets("default").Create(t.Context(), secretNamed("old", "v"), metav1.CreateOptions{}))(t)
		keysFile(t, file, "aesgcm/two", "aesgcm/one")
		until(t, "the file has been read again", func() bool { return reloads("success") })
		read(t, in, "old", "v")
		must(in.client.CoreV1().Secrets("default").Create(t.Context(), secretNamed("new", "w"), metav1.CreateOptions{}))(t)
		if err := in.client.CoreV1().Secrets("default").Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		body, err := in.client.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "").DoRaw(t.Context())
		if err != nil || !strings.Contains(string(body), "[+]kms-providers ok") {
			t.Errorf("%v\n%s", err, body)
		}
	})
	withKeys(t, dir, apiserver.Encryption{ConfigFile: keysFile(t, "", "aesgcm/two")}, func(in *instance) { read(t, in, "new", "w") })
}

func TestBrokenEncryptionIsRefused(t *testing.T) {
	short := policyFile(t, "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - aescbc: {keys: [{name: a, secret: eHh4}]}\n")
	for name, c := range map[string]struct {
		e    apiserver.Encryption
		want []string
	}{
		"missing":  {apiserver.Encryption{ConfigFile: "/nowhere/keys.yaml"}, []string{"/nowhere/keys.yaml", "no such file"}},
		"no file":  {apiserver.Encryption{Reload: true}, []string{"needs --encryption-provider-config"}},
		"nonsense": {apiserver.Encryption{ConfigFile: policyFile(t, "a: [b")}, []string{"policy.yaml", "line 1"}},
		"bad key":  {apiserver.Encryption{ConfigFile: short}, []string{short, "secret is not of the expected length"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := startWith(t.TempDir(), func(cfg *apiserver.Config) { cfg.Encryption = c.e })
			if err == nil || strings.Contains(err.Error(), "\n") {
				t.Fatalf("want one line: %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v: want %q", err, w)
				}
			}
		})
	}
}

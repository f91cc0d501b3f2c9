// What pods see of the files with the node's key and its join token.

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/cmd/internal/clitest"
)

// TestHiddenSecrets: containers do not see the directories of the node's key and of its join
// token, which have the next ones, too.
func TestHiddenSecrets(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "real")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	key, link := filepath.Join(target, "key.pem"), filepath.Join(dir, "link.pem")
	if err := os.WriteFile(key, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(key, link); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		from  bootstrap.GivenFiles
		token string
		want  []string
	}{
		{bootstrap.GivenFiles{}, "", nil},
		{bootstrap.GivenFiles{Key: link, Kubeconfig: "/x/y/kubelet.conf"}, "", []string{dir, target}},
		{bootstrap.GivenFiles{Kubeconfig: key}, "", []string{target, target}},
		{bootstrap.GivenFiles{Key: "/var/lib/kubelet/pki/none.pem"}, "", []string{"/var/lib/kubelet/pki"}},
		{bootstrap.GivenFiles{}, link, []string{dir, target}},
		{bootstrap.GivenFiles{}, "/var/secrets/none", []string{"/var/secrets"}},
		{bootstrap.GivenFiles{}, os.DevNull, nil},
	} {
		if got := (&options{identityOptions: identityOptions{from: tt.from}, tokenFile: tt.token}).hiddenSecrets(); !slices.Equal(got, tt.want) {
			t.Errorf("%+v, token %q: %v, want %v", tt.from, tt.token, got, tt.want)
		}
	}
}

// TestKeyOfItsOwn: a key in a directory that pods have to see is refused where pods are
// processes of this machine.
func TestKeyOfItsOwn(t *testing.T) {
	args := func(key string, more ...string) []string {
		return append(more, "--client-certificate", "/x/client.pem", "--client-key", key, "--certificate-authority", "/etc/ca.crt")
	}
	for _, key := range []string{"/x/client.pem", "/var/lib/kubelet/pki/kubelet-client-current.pem", "/etc/hawser/client.pem", "/etc/kubernetes/kubelet.conf", "/usr/local/hawser/key"} {
		if _, err := parse(t, args(key)...); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	for _, key := range []string{"/client.pem", "/etc/client.pem", "/etc/../etc//client.pem", "/etc/ssl/client.pem", "/usr/lib/client.pem", "/var/lib/client.pem", "/root/key"} {
		_, err := parse(t, args(key)...)
		clitest.Refused(t, err, key+": move it to a directory of its own, such as "+filepath.Join(filepath.Dir(key), "hawser"))
		if _, err := parse(t, args(key, "--kubelet", "https://127.0.0.1:10250")...); err != nil {
			t.Errorf("%s, and a kubelet: %v", key, err)
		}
	}
	link := filepath.Join(t.TempDir(), "key.pem")
	if err := os.Symlink("/etc/hosts", link); err != nil {
		t.Fatal(err)
	}
	_, err := parse(t, args(link)...)
	clitest.Refused(t, err, "--client-key and --certificate-authority: pods see /etc, and would see what replaces the key "+link)
}

// TestTokenElsewhere: a join token may be in a directory that pods have to see, and is hidden
// alone there: a node that starts with it is not kept from starting.
func TestTokenElsewhere(t *testing.T) {
	for _, file := range []string{"/root/none", "/etc/none", "/run/none"} {
		o, err := parse(t, "--token-file", file)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		} else if got := o.hiddenSecrets(); !slices.Equal(got, []string{file}) {
			t.Errorf("%s: hidden are %v", file, got)
		}
	}
}

// The container images: an OCI layout in a tar file, made without a daemon. There is nothing in
// one but the program, the authorities that browsers trust and its licences.

package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// image writes the image of a program.
func (r *release) image(p program) error {
	files, err := r.imageFiles(p)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return err
	}
	image, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), r.imageConfig(p))
	if err != nil {
		return err
	}
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.date}, CreatedBy: "make dist"}})
	if err != nil {
		return err
	}
	dir := filepath.Join(r.scratch, p.name+".oci")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err = path.AppendImage(image, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag(r.version), "io.containerd.image.name": "localhost/" + p.name + ":" + tag(r.version),
	}), layout.WithPlatform(v1.Platform{OS: "linux", Architecture: r.arch})); err != nil {
		return err
	}
	f, err := os.Create(r.file(p, ".oci.tar"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err = pack(f, os.DirFS(dir), r.date); err != nil {
		return err
	}
	return f.Close()
}

// imageConfig says how the image runs. It names no user: the manifests do that hawser manifest
// prints.
func (r *release) imageConfig(p program) *v1.ConfigFile {
	return &v1.ConfigFile{
		OS: "linux", Architecture: r.arch, Created: v1.Time{Time: r.date},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/usr/bin/" + p.name}, Env: []string{"PATH=/usr/bin"},
			Labels: map[string]string{
				"org.opencontainers.image.title": p.name, "org.opencontainers.image.description": p.summary, "org.opencontainers.image.version": r.version,
				"org.opencontainers.image.licenses": "Apache-2.0", "org.opencontainers.image.source": "https://github.com/hawser-project/hawser",
			},
		},
	}
}

// tag is a version as a tag of an image may be.
func tag(version string) string { return strings.NewReplacer("~", "-", "+", "-").Replace(version) }

// imageFiles are those of the image's only layer, as a tar file.
func (r *release) imageFiles(p program) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, dir := range []string{"etc/", "etc/ssl/", "etc/ssl/certs/", "usr/", "usr/bin/", "usr/share/", "usr/share/doc/"} {
		if err := add(w, dir, 0o755, r.date, nil); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(add(w, "tmp/", 0o1777, r.date, nil), add(w, "etc/ssl/certs/ca-certificates.crt", 0o644, r.date, authorities())); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		from, to string
		mode     int64
	}{
		{filepath.Join(r.bin, p.name), "usr/bin/" + p.name, 0o755},
		{filepath.Join(r.tree, "LICENSE"), "usr/share/doc/LICENSE", 0o644},
		{filepath.Join(r.tree, "NOTICE"), "usr/share/doc/NOTICE", 0o644},
		{r.contentsFile(p), "usr/share/doc/contents.cdx.json", 0o644},
	} {
		content, err := os.ReadFile(f.from)
		if err != nil {
			return nil, err
		}
		if err = add(w, f.to, f.mode, r.date, content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// add adds a file, or a directory if its name ends in /. Both are root's.
func add(w *tar.Writer, name string, mode int64, date time.Time, content []byte) error {
	h := &tar.Header{Name: name, Mode: mode, Size: int64(len(content)), ModTime: date, Typeflag: tar.TypeReg}
	if strings.HasSuffix(name, "/") {
		h.Typeflag = tar.TypeDir
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// authorities are those that browsers trust without conditions, which a file cannot tell.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // to memory
		}
	}
	return out.Bytes()
}

// pack writes the files of a directory, in order, as a tar file.
func pack(to io.Writer, dir fs.FS, date time.Time) error {
	w := tar.NewWriter(to)
	err := fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(dir, name)
		if err != nil {
			return err
		}
		return add(w, name, 0o644, date, content)
	})
	return errors.Join(err, w.Close())
}

// The Debian packages. What is in them beside the programs lies in debian.

package main

import (
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

// deb writes the package of a program.
func (r *release) deb(p program) error {
	info, err := r.debInfo(p)
	if err != nil {
		return err
	}
	f, err := os.Create(r.file(p, ".deb"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err = deb.Default.Package(info, f); err != nil {
		return err
	}
	return f.Close()
}

func (r *release) debInfo(p program) (*nfpm.Info, error) {
	contents, err := r.debContents(p)
	if err != nil {
		return nil, err
	}
	info := &nfpm.Info{
		Name: p.name, Arch: r.arch, Platform: "linux", Version: r.version, VersionSchema: "none", MTime: r.date,
		Section: "net", Priority: "optional", Maintainer: "The authors of Hawser",
		Homepage: "https://github.com/hawser-project/hawser", License: "Apache-2.0", Description: p.summary + "\n" + p.about,
		Overridables: nfpm.Overridables{
			Depends: []string{"init-system-helpers (>= 1.54~)"}, Recommends: []string{"ca-certificates"},
			Contents: contents, Deb: nfpm.Deb{Compression: "zstd"},
		},
	}
	if p.name == "hawser" {
		info.Depends = append(info.Depends, "systemd | systemd-standalone-sysusers | systemd-sysusers")
	}
	for name, script := range map[string]*string{"postinst": &info.Scripts.PostInstall, "prerm": &info.Scripts.PreRemove, "postrm": &info.Scripts.PostRemove} {
		if *script, err = r.script(p, name); err != nil {
			return nil, err
		}
	}
	return info, nfpm.Validate(info)
}

// debContents are the files of a package.
func (r *release) debContents(p program) (files.Contents, error) {
	doc := "/usr/share/doc/" + p.name + "/"
	contents := files.Contents{
		regular(filepath.Join(r.bin, p.name), "/usr/bin/"+p.name, 0o755),
		regular(r.debian(p.unit+".service"), "/usr/lib/systemd/system/"+p.unit+".service", 0o644),
		{Source: r.debian(p.env), Destination: "/etc/hawser/" + p.env, Type: files.TypeConfig, FileInfo: &files.ContentFileInfo{Mode: 0o600}},
		regular(filepath.Join(r.tree, "LICENSE"), doc+"copyright", 0o644),
		regular(filepath.Join(r.tree, "NOTICE"), doc+"NOTICE", 0o644),
		regular(r.contentsFile(p), doc+"contents.cdx.json", 0o644),
	}
	if p.name == "hawser" {
		contents = append(contents, regular(r.debian("hawser.sysusers"), "/usr/lib/sysusers.d/hawser.conf", 0o644))
	}
	for shell, to := range p.completions() {
		contents = append(contents, regular(r.completion(p, shell), to, 0o644))
	}
	pages, err := filepath.Glob(filepath.Join(r.manDir(), "*.1"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		if name := filepath.Base(page); owner(name) == p.name {
			if err := compress(page); err != nil {
				return nil, err
			}
			contents = append(contents, regular(page+".gz", "/usr/share/man/man1/"+name+".gz", 0o644))
		}
	}
	return contents, nil
}

// completions are the shells whose command lines are completed, each with the file that the shell
// reads for it.
func (p program) completions() map[string]string {
	return map[string]string{
		"bash": "/usr/share/bash-completion/completions/" + p.name,
		"zsh":  "/usr/share/zsh/vendor-completions/_" + p.name,
		"fish": "/usr/share/fish/vendor_completions.d/" + p.name + ".fish",
	}
}

// owner is the program that a man page is about, or one of whose commands.
func owner(page string) string {
	for _, p := range programs[1:] { // the name of the first one begins all
		if page == p.name+".1" || strings.HasPrefix(page, p.name+"-") {
			return p.name
		}
	}
	return programs[0].name
}

func regular(from, to string, mode os.FileMode) *files.Content {
	return &files.Content{Source: from, Destination: to, FileInfo: &files.ContentFileInfo{Mode: mode}}
}

// compress makes a file FILE.gz, which names no file and no time.
func compress(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	f, err := os.Create(file + ".gz")
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err = w.Write(text); err != nil {
		return err
	}
	if err = w.Close(); err != nil {
		return err
	}
	return f.Close()
}

// script writes a script of a package, which is the same for all but for names.
func (r *release) script(p program, name string) (string, error) {
	text, err := os.ReadFile(r.debian(name))
	if err != nil {
		return "", err
	}
	file := filepath.Join(r.scratch, p.name+"."+name)
	names := strings.NewReplacer("@PACKAGE@", p.name, "@UNIT@", p.unit+".service")
	return file, os.WriteFile(file, []byte(names.Replace(string(text))), 0o600)
}

func (r *release) debian(name string) string {
	return filepath.Join(r.tree, ".tools", "dist", "debian", name)
}

// What is in a program: a bill of materials in CycloneDX, from what its linker noted.

package main

import (
	"os"
	"path/filepath"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/rs/zerolog"
)

// contents writes the list of the modules that are linked into a program, with the hashes by
// which go.sum knows them.
func (r *release) contents(p program) error {
	g, err := bin.NewGenerator(filepath.Join(r.bin, p.name), bin.WithVersionOverride("v"+r.version), bin.WithIncludeStdlib(true), bin.WithLogger(zerolog.Nop()))
	if err != nil {
		return err
	}
	bom, err := g.Generate()
	if err != nil {
		return err
	}
	bom.Metadata.Timestamp = r.date.Format(time.RFC3339)
	f, err := os.Create(r.contentsFile(p))
	if err != nil {
		return err
	}
	defer f.Close()
	if err = cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}
	return f.Close()
}

func (r *release) contentsFile(p program) string { return r.file(p, ".cdx.json") }

"""Small PDF files, written by hand."""

import base64


def pdf(*texts: str, box: str = "0 0 612 792", extra: str = "") -> bytes:
    """A file with a page for each text, of this size in points. ``extra``: what each page draws besides."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(texts)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(texts)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(texts):
        resources = "<< /Font << /F1 3 0 R >> >>"
        drawn = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET {extra}"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [{box}] /Contents {5 + 2 * number} 0 R"
            f" /Resources {resources} >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    return pdf_of(objects)


def pdf_of(objects: list[str], trailer: str = "") -> bytes:
    """A file with these objects; the first is its catalog."""
    data, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{each}\nendobj\n".encode()
    entries = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(objects) + 1
    end = f"trailer\n<< /Size {size} /Root 1 0 R {trailer} >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + f"xref\n0 {size}\n0000000000 65535 f \n{entries}{end}".encode()


def pdf_url(data: bytes) -> str:
    return f"data:application/pdf;base64,{base64.b64encode(data).decode()}"

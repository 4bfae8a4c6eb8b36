"""Documents to be analysed: their text as chunks, and what a reader expects to be told of them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.pipelines.documents.findings.finding import ChunkText, Finding
from holdfast.pipelines.documents.findings.local import analyze


def no_beat(_share: float | None) -> None:
    """Nobody listens."""


def chunks_of(
    text: str, *, chars: int = 1200, overlap: int = 150, page: int | None = None
) -> list[ChunkText]:
    """As the reader cuts them: at spaces, each beginning with the end of the one before."""
    chunks: list[ChunkText] = []
    begin = 0
    while begin < len(text):
        end = min(len(text), begin + chars)
        if end < len(text):
            end = max(text.rfind(" ", begin, end), text.rfind("\n", begin, end), begin) + 1 or end
            end = end if end > begin + 1 else min(len(text), begin + chars)
        again = max(0, begin - overlap)
        again = max(text.find(" ", again, begin) + 1, again) if begin else 0
        repeated = begin - again if chunks else 0
        chunks.append(
            ChunkText(
                number=len(chunks),
                kind="text",
                text=text[begin - repeated : end],
                overlap=repeated,
                page=page,
            )
        )
        begin = end
    return chunks


def pages_of(pages: Sequence[str]) -> list[ChunkText]:
    return [
        ChunkText(number=number, kind="text", text=text, page=number + 1) for number, text in enumerate(pages)
    ]


def table(
    rows: str, *, number: int = 0, sheet: str | None = None, overlap: int = 0, cells: str | None = None
) -> ChunkText:
    return ChunkText(number=number, kind="table", text=rows, sheet=sheet, overlap=overlap, cells=cells)


def found_in(chunks: list[ChunkText] | str, kind: str | None = None) -> list[Finding]:
    """The findings, all or those of a kind."""
    given = chunks_of(chunks) if isinstance(chunks, str) else chunks
    return [found for found in analyze(given, beat=no_beat) if kind in (None, found.kind)]


CONTRACT = """\
MASTER SERVICES AGREEMENT

This Master Services Agreement (the "Agreement") is made on 14 March 2024 between Northwind
Analytics Ltd, a company incorporated in England and Wales with its registered office at 12 Harbour
Street, Bristol (the "Supplier"), and Bluebird Logistics GmbH, a company registered in Hamburg,
Germany (the "Customer").

1. Services

1.1 The Supplier shall provide the data integration services described in Schedule 1 to the Customer
with reasonable skill and care. The data integration services cover twelve warehouses and three
customs terminals.
1.2 The Supplier shall appoint Dr. Helen Marsh as service manager. Ms Marsh reports to the steering
committee of the Customer every month.
1.3 Any change of the data integration services needs a written change request that both parties
have signed.

2. Fees

2.1 The Customer shall pay an annual service fee of EUR 240,000.00, in four instalments of EUR
60,000 each.
2.2 Invoices are payable within thirty days. Late payment bears interest of 8.5% a year above the
base rate of the European Central Bank.
2.3 The annual service fee is adjusted on 1 January 2025 by the change of the consumer price index,
at most by 3%.
2.4 The total liability of the Supplier is limited to EUR 1.5 million for each contract year.

3. Personal data

3.1 Where the Supplier processes personal data for the Customer, it acts as a processor and only on
documented instructions. A personal data breach is to be notified to the data protection officer of
the Customer within 24 hours.
3.2 The data protection officer may audit the Supplier once a year. Personal data is deleted when
the Agreement ends.

4. Term

4.1 This Agreement starts on 1 April 2024 and ends on 31 March 2027, unless it is terminated
earlier.
4.2 Either party may terminate this Agreement with six months' notice, for the first time with
effect from 30 September 2025.
4.3 The laws of England and Wales govern this Agreement. Notices are sent to
legal@northwind-analytics.co.uk and to vertrag@bluebird-logistics.de.

Signed for the Supplier by: Mr. Oliver Grant, Managing Director
Signed for the Customer by: Frau Katrin Vogel, Geschäftsführerin
"""

INVOICE = """\
Harbour Print & Paper Ltd
VAT GB 123 4567 89

INVOICE No. 2024-0871

Invoice date: 05/04/2024
Due date: 25/04/2024

Bill to:
Fenwick & Lowe LLP
4 Temple Row, Birmingham

Description    Quantity    Unit price    Amount
Letterhead, 100 gsm    5000    £0.12    £600.00
Brochure, 16 pages    1200    £1.85    £2,220.00
Envelopes DL    4000    £0.05    £200.00

Subtotal £3,020.00
VAT 20% £604.00
Total due £3,624.00

Please pay £3,624.00 by 25/04/2024. Questions? accounts@harbourprint.co.uk
"""

REPORT = """\
Annual Report 2023

Overview

Solara Energy plc had a strong year in 2023. Revenue rose by 18% to $412.6 million, driven by demand
for battery storage systems in Europe. Operating profit increased to $57.3 million, while the net
loss of the hydrogen division narrowed to $(4.2) million. The company opened a second battery
storage plant in Zaragoza in September 2023 and now employs 2,150 people. The board proposes a
dividend of $0.35 per share, payable on June 14, 2024.

Battery storage

Battery storage systems remained the largest segment and contributed 63% of revenue. Order intake
for battery storage systems reached $310 million in Q4 2023 alone, and the order book covers
fourteen months of production. Grid operators in Spain and Germany signed framework contracts that
secure the capacity of the Zaragoza plant until 2026. Supply of lithium cells was tight in the first
quarter of 2023 but eased after the agreement with Kaito Cells Inc.

Hydrogen

The hydrogen division delivered its first electrolyser to the University of Aarhus on March 3, 2023.
Development costs fell by a third because the pilot line was completed. The division expects to
break even in 2025 if subsidies from the European Commission are granted as planned.

Risks and outlook

Prices of lithium cells and delays of grid connections are the main risks. A ten percent rise of
cell prices would reduce operating profit by about $6 million. For 2024 the company expects revenue
between $450 million and $480 million, and an operating margin of 14.5 per cent. Chief executive
Maria Lindqvist said that battery storage will stay the core of the business.

$ million 2023 2022
Battery storage 259.9 208.4
Solar inverters 121.5 117.0
Hydrogen 31.2 24.3
Total 412.6 349.7
"""

GERMAN_LETTER = """\
Stadtwerke Lindenau GmbH
Am Wasserturm 7
04177 Leipzig

Leipzig, 3. Mai 2024

Frau
Sabine Krüger
Birkenweg 12
04179 Leipzig

Jahresabrechnung Ihres Stromverbrauchs

Sehr geehrte Frau Krüger,

Ihr Stromverbrauch lag im Abrechnungszeitraum vom 01.04.2023 bis 31.03.2024 bei 2.845 \
Kilowattstunden. Für den \
Stromverbrauch berechnen wir Ihnen 1.024,20 €, Ihre Abschlagszahlungen betrugen insgesamt 1.140,00 \
€. Daraus ergibt \
sich ein Guthaben von 115,80 Euro, das wir bis zum 17. Mai 2024 auf Ihr Konto überweisen.

Der Arbeitspreis steigt ab dem 1. Juli 2024 um 4,5 % auf 37,62 Cent je Kilowattstunde. Grund dafür \
sind die höheren \
Netzentgelte, die die Bundesnetzagentur genehmigt hat. Die neuen Abschlagszahlungen betragen 98,00 € \
im Monat. Sie \
können die Höhe der Abschlagszahlungen jederzeit im Kundenportal ändern. Unsere Investitionen in das \
Stromnetz \
belaufen sich in diesem Jahr auf 12,5 Mio. €.

Mit freundlichen Grüßen

Dr. Thomas Wendt
Kundenservice
"""
